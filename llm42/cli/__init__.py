"""The command line: ``llm42 serve | check | batch | audit | fingerprint | model | receipt | bench | plan``.

Ray, vLLM and torch are imported by the commands that need them, when they need them: help answers at once.
"""

import typer

from llm42.cli.audit import audit
from llm42.cli.batch import batch
from llm42.cli.bench import bench
from llm42.cli.check import check
from llm42.cli.fingerprint import fingerprint
from llm42.cli.model import model
from llm42.cli.plan import plan
from llm42.cli.receipt import receipt
from llm42.cli.serve import serve

__all__ = ["main"]

main = typer.Typer(
    help="Deterministic LLM serving: decode fast, verify, commit or roll back.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
main.command()(serve)
main.command()(check)
main.command()(batch)
main.command()(audit)
main.command()(fingerprint)
main.add_typer(model, name="model")
main.add_typer(receipt, name="receipt")
main.add_typer(bench, name="bench")
main.add_typer(plan, name="plan")
