"""``llm42 check``: does a server answer alike, bit for bit, whatever else it is doing?"""

import asyncio
import json
import math
from typing import Annotated
from urllib.parse import urlsplit

import typer

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def api_base(url: str) -> str:
    """The URL with ``/v1``, where it names no path of its own."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and url.isprintable() and " " not in url
    except ValueError:
        usable = False
    if not usable:
        raise typer.BadParameter(f"{url!r} is no http(s) URL; give one like http://127.0.0.1:8000")
    if parts.query or parts.fragment:
        raise typer.BadParameter(f"{url!r} has a query or a fragment; leave it out")
    url = url.rstrip("/")
    return url if parts.path.strip("/") else f"{url}/v1"


def finite(seconds: float) -> float:
    # A range lets NaN through.
    if not math.isfinite(seconds):
        raise typer.BadParameter("give a finite number of seconds")
    return seconds


def header_value(key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable()):
        raise typer.BadParameter("the key has characters that no HTTP header can carry")
    return key


ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="LLM42_API_KEY", callback=header_value, help="Sent as bearer token."),
]
"""Not the official client's environment variable: that key is not meant for whatever server is named."""


def check(
    base_url: Annotated[
        str,
        typer.Option(
            callback=api_base,
            help="The server, e.g. http://127.0.0.1:8000 (/v1 is added if no path is given).",
        ),
    ],
    prompts: Annotated[int, typer.Option(min=2, max=10_000, help="How many of the built-in prompts.")] = 16,
    concurrency: Annotated[int, typer.Option(min=2, max=512, help="Largest burst; the smallest is 2.")] = 8,
    trials: Annotated[int, typer.Option(min=1, max=10_000, help="How often each prompt is asked in a burst.")] = 3,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest completion, in tokens.")] = 128,
    ordinary: Annotated[
        bool,
        typer.Option("--ordinary", help="Do not ask for deterministic answers (other servers; negative control)."),
    ] = False,
    model: Annotated[str | None, typer.Option(help="By default the first of /v1/models.")] = None,
    api_key: ApiKey = None,
    timeout: Annotated[float, typer.Option(min=0.001, callback=finite, help="Seconds for one completion.")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Check that a server answers each prompt the same, bit for bit, alone and under load.

    Works with any OpenAI-compatible server. Each prompt is asked alone first, then in shuffled bursts of
    changing size; texts, tokens and logprobs are compared without any tolerance.

    Exit status: 0 if every prompt had one output, 1 if one diverged, 2 if the check could not be made.
    """
    try:
        status = _run(
            base_url, prompts, concurrency, trials, max_tokens, not ordinary, model, api_key, timeout, as_json
        )
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        status = INTERRUPTED
    raise typer.Exit(status)


def _run(
    base_url: str,
    prompts: int,
    concurrency: int,
    trials: int,
    max_tokens: int,
    deterministic: bool,
    model: str | None,
    api_key: str | None,
    timeout_s: float,
    print_json: bool,
) -> int:
    # Here and not above, since these take a second and every other command would wait for them.
    from rich.console import Console
    from rich.progress import Progress

    from llm42.check import report
    from llm42.check.client import CheckError
    from llm42.check.prompts import prompts as built_in
    from llm42.check.runner import SEED, Check, Plan

    out, err = Console(), Console(stderr=True)
    plan = Plan(
        base_url=base_url,
        prompts=built_in(prompts, SEED),
        concurrency=concurrency,
        trials=trials,
        max_tokens=max_tokens,
        deterministic=deterministic,
        model=model,
        api_key=api_key,
        timeout_s=timeout_s,
    )
    error: str | None = None
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("completions", total=plan.completions)
        run = Check(
            plan,
            on_completion=lambda: progress.advance(task),
            on_note=lambda note: err.print(note, markup=False, highlight=False, soft_wrap=True),
        )
        try:
            asyncio.run(run.run())
        except CheckError as failure:
            error = str(failure)
    if print_json:
        typer.echo(json.dumps(report.as_json(run, error)))
    elif run.ledger.records:
        out.print(report.as_table(run))
    if error is not None:
        err.print(f"The check could not be finished: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    if not print_json:
        out.print(report.verdict(run), soft_wrap=False)
    return 1 if run.ledger.findings else 0
