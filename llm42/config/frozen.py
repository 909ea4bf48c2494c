"""What all parts of a configuration have in common."""

from pydantic import BaseModel, ConfigDict, ValidationError


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def wrong_fields(error: ValidationError) -> str:
    """One line for each wrong field: its name, what it is, and what would be right."""
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"]) or "args"
        given = "" if problem["type"] in ("missing", "value_error") else f" (got {problem['input']!r})"
        lines.append(f"  {name}: {problem['msg']}{given}")
    return "\n".join(lines)
