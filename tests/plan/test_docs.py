"""docs/plan.md names every field of a plan, as the code describes it."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from llm42.plan.plan import Plan
from llm42.plan.report import Report
from llm42.plan.step_times import StepTimes


def rows(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = next(
            (
                part
                for part in (field.annotation, *get_args(field.annotation))
                if isinstance(part, type) and issubclass(part, BaseModel) and not field.description
            ),
            None,
        )
        if inner is not None:
            many = inner is not field.annotation
            yield from rows(inner, f"{prefix}{name}{'[]' if many else ''}.")
        else:
            yield f"| `{prefix}{name}` | {field.description} |"


def test_every_field_is_described() -> None:
    text = Path("docs/plan.md").read_text()
    missing = [row for row in (*rows(Plan), *rows(StepTimes, "step_times.")) if row not in text]
    assert not missing, "\n".join(missing)
    assert not [name for name in Report.model_fields if f"`{name}`" not in text]
