"""``llm42 audit``: do this machine's kernels carry the guarantee? The start-up audit of a verifier, by itself."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from llm42.cli.target import Target

HOLDS, VIOLATED, NOT_AUDITED = 0, 1, 2
INTERRUPTED = 130
LOG_LINES = 15


def audit(
    config: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="Serve configuration, as for `serve run`.")
    ] = Path("deployments/llm42.yaml"),
    full: Annotated[
        bool, typer.Option("--full", help="The longer audit, whatever `audit.start` says; minutes on a CPU.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Load the verifier of CONFIG on this machine and audit it, as each verifier is before it serves.

    Passes are compared on full logits, as bits: repeated, in other rows, beside other neighbours, with other tails.

    Exit status: 0 if all properties hold, 1 if one is violated, 2 if the audit could not be made.
    """
    from llm42.cli.target import Target

    try:
        target = Target.read(config)
        if not target.configs:
            raise ValueError(f"{config} has no application of ours")
        found = _in_child(target, full)
    except ValueError as error:
        typer.echo(f"The audit could not be made: {error}", err=True)
        raise typer.Exit(NOT_AUDITED) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _show(found)
    raise typer.Exit(HOLDS if found["holds"] else VIOLATED)


def _in_child(target: "Target", full: bool) -> dict[str, Any]:
    """The result, from a process whose environment is that of a verifier from its first moment.

    Raises ValueError with the end of its log if it does not get that far.
    """
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from llm42.verifier.settings import verifier_env

    config = target.configs[0]
    if full:
        config = config.model_copy(update={"audit": config.audit.model_copy(update={"start": "full"})})
    env = {"VLLM_LOGGING_LEVEL": "WARNING", **target.environment(), **verifier_env(config)}
    command = [sys.executable, "-m", "llm42.cli.audit_worker", config.model_dump_json()]
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with (
        tempfile.TemporaryFile("w+", prefix="llm42-audit-") as log,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("loading the model")
        child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            found = _follow(child, lambda passes: progress.update(task, description=f"{passes} passes"))
        finally:
            child.kill()
            child.wait()
        if found is None:
            log.seek(0)
            raise ValueError("the process that makes it ended early:\n" + "".join(log.readlines()[-LOG_LINES:]))
        return found


def _follow(child: "subprocess.Popen[str]", on_pass: Callable[[int], None]) -> dict[str, Any] | None:
    """Each line is the number of passes so far, or the result; None if there is none."""
    assert child.stdout is not None
    for line in child.stdout:  # as long as it takes: weights may be large
        said = json.loads(line)
        if isinstance(said, dict):
            return said
        on_pass(said)
    return None


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console()
    console.print(_table(found))
    if found["holds"]:
        console.print(
            f"Holds ({found['level']}): {found['comparisons']} slots compared as bits in {found['passes']} passes, "
            f"{found['seconds']:.1f} s."
        )
        return
    for failure in found["failures"]:
        console.print(f"Not {failure['property']}: {failure['where']}.", markup=False, highlight=False)
    console.print("A verifier like this serves nothing. Change the configuration, for the whole pool:")
    for remedy in found["remedies"]:
        console.print(f"- {remedy}", markup=False, highlight=False)


def _table(found: dict[str, Any]) -> "Table":
    from rich.table import Table

    from llm42.verifier.audit.report import Property

    table = Table("property", "meaning", "")
    violated = {failure["property"] for failure in found.get("failures", ())}
    for checked in Property:
        if checked in violated:
            state = "VIOLATED"
        elif not found["holds"]:
            state = "not shown"
        else:
            state = "holds" if checked in found["properties"] else "not needed: one row in a pass"
        table.add_row(str(checked), checked.meaning, state)
    return table
