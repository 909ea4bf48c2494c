"""``llm42 receipt``: was this answer really computed so?"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from llm42.cli.check import ApiKey, api_base

receipt = typer.Typer(help="Check receipts of deterministic answers.", no_args_is_help=True)


@receipt.callback()
def group() -> None:
    """Check receipts of deterministic answers."""


@receipt.command()
def verify(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A receipt, or a response that has some.")],
    base_url: Annotated[
        str, typer.Option(callback=api_base, help="The server whose verifiers replay it, e.g. http://127.0.0.1:8000.")
    ],
    api_key: ApiKey = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one receipt.")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each receipt.")] = False,
) -> None:
    """Replay receipts on a server's verifiers, and say whether they are confirmed.

    Exit status: 0 if all are, 1 if one differs, 2 if one could not be checked.
    """
    import httpx

    statuses = []
    for found in _receipts(file):
        headers = {"authorization": f"Bearer {api_key}"} if api_key is not None else {}
        try:
            response = httpx.post(f"{base_url}/receipts/verify", json=found, headers=headers, timeout=timeout)
            said: Any = response.json()
        except (httpx.HTTPError, ValueError) as error:
            statuses.append(_unchecked(f"{base_url} did not answer: {error!r}", as_json))
            continue
        if response.status_code != 200 or not isinstance(said, dict) or "confirmed" not in said:
            statuses.append(_unchecked(_message(said, response.status_code), as_json))
            continue
        typer.echo(json.dumps(said) if as_json else _sentence(said))
        statuses.append(0 if said["confirmed"] else 1)
    raise typer.Exit(max(statuses))


def _receipts(file: Path) -> list[Any]:
    """One receipt, or those of a response's ``determinism`` object."""
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{file} holds no JSON: {error}") from None
    if isinstance(document, dict) and "windows" in document:
        return [document]
    said = document.get("determinism") if isinstance(document, dict) else None
    found = said.get("receipts") if isinstance(said, dict) else None
    if not isinstance(found, list) or not found:
        raise typer.BadParameter(f'{file} holds no receipt; ask for one with "receipt": true in the request')
    return found


def _sentence(said: dict[str, Any]) -> str:
    if said["confirmed"]:
        return f"Confirmed: {said['tokens']} tokens, fingerprint {said['fingerprint']}."
    place = said["first_difference"]
    return (
        f"Not confirmed: window {place['window']} (positions {place['first_position']} to {place['end_position'] - 1}) "
        f"is the first that differs, fingerprint {said['fingerprint']}."
    )


def _unchecked(reason: str, as_json: bool) -> int:
    if as_json:
        typer.echo(json.dumps({"confirmed": None, "error": reason}))
    typer.echo(f"Not checked: {reason}", err=True)
    return 2


def _message(said: Any, status: int) -> str:
    error = said.get("error") if isinstance(said, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return f"HTTP {status}: {message or said}"
