"""``POST /v1/receipts/verify``: replays what a receipt says, and tells whether it is so."""

import asyncio
import contextvars
import uuid

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llm42.protocol.errors import ReplayImpossible, ReplayRefused
from llm42.receipt import Receipt
from llm42.router.http import openai_error
from llm42.router.keys import client_of
from llm42.router.quota import OverQuota, Quotas, Spend
from llm42.router.transcript import replay_of
from llm42.router.verifiers import Pin, Unverifiable, VerifierPool

PATH = "/v1/receipts/verify"
MAX_AT_ONCE = 4
"""Receipts in one router that are checked at a time; they take verifiers' time from those who wait for answers."""


def receipts_route(verifiers: VerifierPool, quotas: Quotas) -> Route:
    """A route for vLLM's app. To replay a receipt costs its key's quota what the answer did."""
    open_checks = 0

    async def verify(request: Request) -> Response:
        nonlocal open_checks
        if open_checks >= MAX_AT_ONCE:
            return openai_error(503, f"{MAX_AT_ONCE} receipts are being checked already; ask again")
        open_checks += 1
        try:
            receipt = Receipt.model_validate_json(await request.body())
            with quotas.admit(client_of(request.scope)) as spend:
                return await _verify(receipt, verifiers, spend)
        except OverQuota as over:
            return over.response()
        except ValidationError as error:
            first = error.errors()[0]
            return openai_error(400, f"not a receipt: {first['msg']}", param=".".join(map(str, first["loc"])) or None)
        finally:
            open_checks -= 1

    return Route(PATH, verify, methods=["POST"])


async def _verify(receipt: Receipt, verifiers: VerifierPool, spend: Spend) -> Response:
    prompt, tokens = receipt.prompt_token_ids, receipt.token_ids
    request_id = f"receipt-{uuid.uuid4().hex}"
    question = replay_of(request_id, prompt, tokens, receipt.selection, receipt.adapter, receipt.fingerprint)
    try:
        description = await verifiers.describe()
        found, longest = description["fingerprint"], description["max_model_len"]
        if found != receipt.fingerprint:
            message = f"the receipt is from verifiers that compute as {receipt.fingerprint}, these compute as {found}"
            return openai_error(412, message, param="fingerprint")
        if len(receipt.tokens) > longest:
            message = f"the receipt has {len(receipt.tokens)} tokens, but a context here has {longest}"
            return openai_error(400, message, param="token_ids")
        spend(len(receipt.tokens))  # not afterwards: whoever leaves has had the work done
        reply = await asyncio.get_running_loop().create_task(
            verifiers.replay(question, None, Pin(receipt.fingerprint)),
            context=contextvars.Context(),  # see llm42.router.background
        )
    except ReplayRefused as error:
        return openai_error(400, f"the receipt cannot be replayed here: {error}", param="prompt_token_ids")
    except ReplayImpossible as error:
        return openai_error(400, f"the receipt cannot be replayed: {error}", param="token_ids")
    except Unverifiable as error:
        return openai_error(503, str(error))
    window = receipt.first_difference(reply)
    said = {"confirmed": window is None, "fingerprint": receipt.fingerprint, "tokens": len(tokens)}
    return JSONResponse(said if window is None else {**said, "first_difference": _place(receipt, window)})


def _place(receipt: Receipt, window: int) -> dict[str, int]:
    [span] = [span for span in receipt.spans if span.start // receipt.window_size == window]
    return {"window": window, "first_position": span.start, "end_position": span.stop}
