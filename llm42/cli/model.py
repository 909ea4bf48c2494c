"""``llm42 model``: the models that need no hub."""

from enum import StrEnum
from typing import Annotated

import typer

model = typer.Typer(help="Prepare the models that need no hub.", no_args_is_help=True)


class Name(StrEnum):
    demo = "demo"
    tiny = "tiny"


@model.callback()
def group() -> None:
    """Prepare the models that need no hub."""


@model.command()
def prepare(
    name: Annotated[Name, typer.Argument(help="demo: SmolLM2-135M-Instruct; tiny: random, for tests.")],
) -> None:
    """Make a model in the cache, unless it is there, and print its directory."""
    from llm42.models import resolve_model

    typer.echo(resolve_model(name.value))
