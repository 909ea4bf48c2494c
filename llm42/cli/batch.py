"""``llm42 batch``: a file of requests in, a file of verified answers out."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from llm42.cli.check import INTERRUPTED, ApiKey, api_base, finite


def _object(text: str | None) -> str | None:
    try:
        found = json.loads(text) if text is not None else {}
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"it is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter("give a JSON object like '{\"top_p\": 0.95}'")
    return text


def batch(
    source: Annotated[
        Path,
        typer.Argument(metavar="INPUT", exists=True, dir_okay=False, help="JSONL: a request in each line."),
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", dir_okay=False, help="JSONL: written, or gone on with if it is there.")
    ],
    base_url: Annotated[
        str,
        typer.Option(
            callback=api_base,
            help="The server, e.g. http://127.0.0.1:8000 (/v1 is added if no path is given).",
        ),
    ],
    model: Annotated[str | None, typer.Option(help="By default the first of /v1/models.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest completion, in tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option(help="Each request gets a seed made from this and its custom_id.")] = None,
    defaults: Annotated[
        str | None, typer.Option(metavar="JSON", callback=_object, help="More parameters, e.g. '{\"top_p\": 0.95}'.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Most requests at a time.")] = 16,
    expected_fingerprint: Annotated[
        str | None, typer.Option(help="Take answers of this fingerprint only. By default that of the first.")
    ] = None,
    api_key: ApiKey = None,
    timeout: Annotated[float, typer.Option(min=0.001, callback=finite, help="Seconds for one try.")] = 300.0,
    tries: Annotated[int, typer.Option(min=1, max=1000, help="How often a request is sent while that may help.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a sentence.")] = False,
) -> None:
    """Answer a file of requests deterministically: the same bits as online, and the same file each time.

    A line is {"prompt": ...} or {"messages": [...]}, with any parameters and a custom_id, or a line of the OpenAI batch
    format. Options are for requests that do not say it themselves. Interrupted? Run the same command again.

    Exit status: 0 if all requests are answered, 1 if some have failed for good, 2 if the batch could not be finished.
    """
    fields: dict[str, Any] = json.loads(defaults) if defaults is not None else {}
    fields |= {"max_tokens": max_tokens} if max_tokens is not None else {}
    fields |= {"temperature": temperature} if temperature is not None else {}
    # Here and not above, since these take a second and every other command would wait for them.
    from llm42.client import Defaults, Options

    options = Options(base_url, api_key, expected_fingerprint, concurrency, timeout, tries)
    try:
        status = _run(source, output, options, Defaults(model, fields, seed), as_json)
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command to go on", err=True)
        status = INTERRUPTED
    raise typer.Exit(status)


def _run(source: Path, output: Path, options: Any, defaults: Any, print_json: bool) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from llm42.client import Batch, BatchError, Outcome, Store, make_requests, parse_lines

    err = Console(stderr=True)

    def say(text: str) -> None:
        err.print(text, markup=False, highlight=False, soft_wrap=True)

    run: Batch | None = None
    error: str | None = None
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]} failed"), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        failed, waits = 0, set[str]()

        def on_outcome(outcome: Outcome | None) -> None:
            nonlocal failed
            waits.clear()
            if outcome is not None and outcome.error is not None:
                failed += 1
                say(f"{outcome.custom_id!r} failed: {outcome.error.message}")
            progress.update(task, advance=1, failed=failed)

        def on_wait(reason: str, seconds: float) -> None:
            if reason not in waits:  # once, though many requests wait for the same
                waits.add(reason)
                say(f"{reason}; again in {seconds:.1f} s")

        try:
            with source.open("rb") as lines:
                requests = make_requests(parse_lines(lines), defaults)
            task = progress.add_task("requests", total=len(requests), failed=0)
            with Store(output) as store:
                run = Batch(requests, store, options, on_outcome=on_outcome, on_wait=on_wait)
                asyncio.run(run.run())
        except (BatchError, OSError) as failure:
            error = str(failure)
    summary = asdict(run.summary) if run is not None else None
    if print_json:
        typer.echo(json.dumps({"summary": summary, "error": error}))
    elif summary is not None:
        typer.echo(_sentence(summary))
    if error is not None:
        say(f"The batch could not be finished: {error}")
        return 2
    return 1 if summary is not None and summary["failed"] else 0


def _sentence(summary: dict[str, Any]) -> str:
    return (
        f"{summary['answered']} of {summary['requests']} requests answered, {summary['failed']} failed; "
        f"{summary['asked']} asked now, in {summary['seconds']:.1f} s. {summary['completion_tokens']} tokens, "
        f"fingerprint {summary['fingerprint']}."
    )
