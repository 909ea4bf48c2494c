"""``llm42 fingerprint``: what a server's verifiers are, and where two of them differ."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llm42.cli.check import ApiKey, header_value

if TYPE_CHECKING:
    from rich.table import Table

TIMEOUT_S = 30.0
UNREADABLE = 2


class UnreadableError(Exception):
    """There is no fingerprint where one was looked for; the message says why."""


def fingerprint(
    one: Annotated[str, typer.Argument(metavar="A", help="Base URL of a server, or a file saved with --json.")],
    other: Annotated[str | None, typer.Argument(metavar="[B]", help="Another one, to compare with.")] = None,
    api_key: ApiKey = None,
    other_api_key: Annotated[str | None, typer.Option(callback=header_value, help="That of B.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Print what a server's fingerprint is made of, or what differs between two.

    Two servers with the same fingerprint give the same deterministic answers. `--json` saves one for later:
    llm42 fingerprint http://127.0.0.1:8000 --json > today.json

    Exit status: 0 if it was read (and both are equal), 1 if they differ, 2 if one could not be read.
    """
    try:
        keys = ((one, api_key), (other, other_api_key))
        found = [_read(source, key) for source, key in keys if source is not None]
    except UnreadableError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(UNREADABLE) from None
    if len(found) == 1:
        _show(found[0], as_json)
    else:
        raise typer.Exit(_compare(found[0], found[1], as_json))


def _read(source: str, api_key: str | None) -> dict[str, Any]:
    """The object that ``GET /fingerprint`` gives, from a server or from a file."""
    from llm42.verifier.fingerprint import fingerprint as digest

    text = _get(source, api_key) if source.startswith(("http://", "https://")) else _load(source)
    try:
        found = json.loads(text)
        claimed, parts = found["fingerprint"], dict(found["parts"])
    except (ValueError, KeyError, TypeError):
        raise UnreadableError(f"{source} holds no fingerprint") from None
    if digest(parts) != claimed:
        raise UnreadableError(f"{source} says fingerprint {claimed}, but its parts do not give that: it was changed")
    return dict(found)


def _get(url: str, api_key: str | None) -> str:
    import httpx

    base = url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {api_key}"} if api_key is not None else {}
    try:
        response = httpx.get(f"{base}/fingerprint", headers=headers, timeout=TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnreadableError(f"{url} does not answer: {type(error).__name__}: {error}") from None
    if not response.is_success:
        raise UnreadableError(f"{url} answers HTTP {response.status_code}: {response.text[:500]!r}")
    return response.text


def _load(name: str) -> str:
    try:
        return Path(name).read_text()
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{name} is neither an http(s) URL nor a file that can be read: {error}") from None


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
        return
    from llm42.verifier.fingerprint import differences

    table = _table("part", "value")
    for name, (value, _) in differences(found["parts"], _emptied(found["parts"])).items():
        table.add_row(name, _text(value))
    _print(table)
    typer.echo(f"fingerprint {found['fingerprint']}")


def _compare(one: dict[str, Any], other: dict[str, Any], as_json: bool) -> int:
    """Prints what differs; the exit status."""
    from llm42.verifier.fingerprint import differences

    found = differences(one["parts"], other["parts"])
    fingerprints = [one["fingerprint"], other["fingerprint"]]
    if as_json:
        typer.echo(json.dumps({"equal": not found, "fingerprints": fingerprints, "differences": found}))
    elif not found:
        typer.echo(f"Equal: {fingerprints[0]}")
    else:
        table = _table("part", "A", "B")
        for name, values in found.items():
            table.add_row(name, *map(_text, values))
        _print(table)
        typer.echo(f"Different: A is {fingerprints[0]}, B is {fingerprints[1]}.")
    return 1 if found else 0


def _emptied(parts: dict[str, Any]) -> dict[str, Any]:
    """The same names without values: all that is left of them is a difference."""
    return {name: _emptied(value) for name, value in parts.items() if isinstance(value, dict)}


def _table(*columns: str) -> "Table":
    from rich.table import Table

    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(table: "Table") -> None:
    from rich.console import Console

    Console().print(table)


def _text(value: Any) -> Any:
    from rich.text import Text

    return Text(value if isinstance(value, str) else json.dumps(value))
