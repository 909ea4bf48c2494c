"""Do margins say where drafts go wrong, and what does a cadence make of that? Real drafts, real replays.

    python benchmarks/margins.py --model tiny --dtype bfloat16 --prompts 8 --tokens 250

A fast path engine drafts, a verifier replays, in turns and in one process, greedily: the canonical continuation of each
prompt, with the margin of each draft on it and whether it was contradicted. Then sessions walk along these under each
cadence; a replay takes `--delay` drafted tokens, and there are always idle rows. `recomputed` and `slots` are for each
committed token, slots those of rows that answer.
"""

import argparse
import asyncio
import json
import os
import time
from dataclasses import dataclass
from typing import Any

from llm42.config import Cadence, Config
from llm42.environment import OFFLINE_ENV
from llm42.models import resolve_model
from llm42.protocol import (
    GREEDY,
    Question,
    ReplayReply,
    ReplayRequest,
    Scores,
    Session,
    StartDraft,
    StopDraft,
    StopRules,
    Verify,
    pack_tokens,
)
from llm42.verifier.settings import verifier_env

RIGHT, WRONG = 1, 2
CADENCES = (
    Cadence(mode="window"),
    *(Cadence(mode="margin", price=price) for price in (4, 2, 1)),
    Cadence(mode="adaptive", min_candidates=8),
)


@dataclass(frozen=True)
class Walk:
    """Along the canonical tokens of one prompt."""

    margins: list[float]
    contradicted: list[bool]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"], help="of both engines")
    parser.add_argument("--draft-dtype", choices=["float32", "bfloat16"], help="of the drafting one, if another")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=250, help="per prompt")
    parser.add_argument("--delay", type=int, default=2)
    parser.add_argument("--windows", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    engine = {"kv_cache_memory_bytes": 64 << 20}
    config = Config.model_validate(
        {
            "model": options.model,
            "dtype": options.dtype,
            "max_model_len": -(-(options.tokens + 64) // 32) * 32,
            "verifier": {"engine": engine},
            "fast_path": {"engine": engine},
        }
    )
    os.environ.update({**OFFLINE_ENV, **verifier_env(config)})
    walks = asyncio.run(walk(config, options))
    result: dict[str, Any] = {"bands": bands(walks)}
    for window in options.windows:
        for cadence in CADENCES:
            result[f"W={window} {cadence.label}"] = replayed(walks, window, cadence, options.delay)
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))


async def walk(config: Config, options: argparse.Namespace) -> list[Walk]:
    import numpy as np

    from llm42.verifier.engine import ReplayEngine

    path = resolve_model(config.model)
    verifier = ReplayEngine(config, path)
    drafter = Drafter(config.model_copy(update={"dtype": options.draft_dtype or config.dtype}), path)
    walks = []
    for prompt in np.random.default_rng(0).integers(3, 49152, (options.prompts, 40)).tolist():
        done, tokens = Walk([], []), list(prompt)
        while (left := options.tokens - len(done.margins)) > 0:
            drafted, margins = drafter.draft(tokens, left)
            question = Question(pack_tokens([*tokens, *drafted[:-1]]), len(tokens) - 1)
            reply = await verifier.replay(ReplayRequest("bench", question))
            for canonical, token, margin in zip(reply.scores.tokens, drafted, margins, strict=True):
                tokens.append(canonical)
                done.margins.append(margin)
                done.contradicted.append(canonical != token)
                if canonical != token:
                    break
        walks.append(done)
    await verifier.close()
    return walks


class Drafter:
    """vLLM as it comes, but on one thread, as the verifier in this process has it: its attention drifts little."""

    def __init__(self, config: Config, path: str) -> None:
        from llm42.fastpath.settings import fastpath_engine_args
        from llm42.internals.draft_sampler import make_drafting_core

        self._core = make_drafting_core(fastpath_engine_args(config, path))
        self._asked = 0

    def draft(self, tokens: list[int], count: int) -> tuple[list[int], list[float]]:
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        from llm42.internals.draft_margins import draft_margins, name_margins, with_margins
        from llm42.internals.draft_sampler import draft_extra_args

        self._asked += 1
        name = str(self._asked)
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        params.extra_args = draft_extra_args(GREEDY, margins=True)
        name_margins(params, name)
        os.environ["VLLM_CPU_ATTN_SPLIT_KV"] = "1"
        self._core.client.add_request(
            EngineCoreRequest(name, tokens, None, params, None, time.time(), None, None, None)
        )
        drafted: list[int] = []
        margins: list[float] = []
        assert self._core.margins is not None
        while len(drafted) < count:
            for output in self._core.client.get_output().outputs:
                told = self._core.margins.of(name, len(drafted), len(output.new_token_ids))
                margins += draft_margins(with_margins(output, told))
                drafted += output.new_token_ids
        os.environ["VLLM_CPU_ATTN_SPLIT_KV"] = "0"
        return drafted, margins


def bands(walks: list[Walk]) -> dict[str, str]:
    """How many drafts there are in each band of margins, in logits, and how many of them were contradicted."""
    found = {}
    for low, high in ((0, 0), (0, 0.02), (0.02, 0.05), (0.05, 0.1), (0.1, 0.2), (0.2, 0.5), (0.5, 1e9)):
        inside = [
            wrong
            for one in walks
            for margin, wrong in zip(one.margins, one.contradicted, strict=True)
            if (low < margin <= high if high else margin == 0)
        ]
        found[f"{low}..{high:g}"] = f"{sum(inside)} of {len(inside)}"
    return found


def replayed(walks: list[Walk], window: int, cadence: Cadence, delay: int) -> dict[str, float]:
    """Sessions of one router, one after another."""
    policy = cadence.policy(window)
    sums = dict.fromkeys(("recomputed", "slots", "rollbacks", "replays"), 0.0)
    committed = 0
    for one in walks:
        session = Session([RIGHT] * 40, StopRules(len(one.margins)), policy, 4 * window)
        stream: StartDraft | None = None
        question: tuple[int, Verify] | None = None
        position = furthest = now = 0
        astray = False
        actions = session.start()
        while not session.finished:
            for action in actions:
                match action:
                    case StartDraft():
                        stream, position = action, len(action.tokens) - 40
                        astray = WRONG in action.tokens
                    case StopDraft():
                        stream = None
                    case Verify(question=asked):
                        question = now + delay, action
                        sums["slots"] += window * ((asked.length - 1) // window - asked.start // window + 1)
            now += 1
            actions = []
            if question is not None and question[0] <= now:
                (_, verify), question = question, None
                count = verify.question.count
                scores = Scores([RIGHT] * count, bytes(4 * count), [1] * count)
                actions = session.verified(verify.call, ReplayReply("", verify.question.digest, scores, idle_rows=1))
            elif stream is not None and position < len(one.margins):
                margin, astray = one.margins[position], astray or one.contradicted[position]
                position += 1
                sums["recomputed"] += position <= furthest
                furthest = max(furthest, position)
                token, last, number = WRONG if astray else RIGHT, position == len(one.margins), stream.stream
                stream = None if last else stream
                actions = session.drafted(number, [token], [margin], ended=last)
        sums["rollbacks"] += session.stats.rollbacks
        sums["replays"] += session.stats.replays
        committed += session.stats.committed
    return {name: round(value / committed, 4) for name, value in sums.items()}


if __name__ == "__main__":
    main()
