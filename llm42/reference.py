"""The reference pages, written from the code: ``python -m llm42.reference`` rewrites docs/configuration.md and
docs/metrics.md. A test compares them."""

from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from llm42.config import Config
from llm42.metrics import BY_PART, FOREIGN

_HEAD = "<!-- Written by `python -m llm42.reference`; edit the descriptions in the code instead. -->\n"


def configuration() -> str:
    """docs/configuration.md: every field of ``args``, with its type, default and description."""
    lines = [
        "# Configuration",
        _HEAD,
        "The `args` of the application in a Serve YAML, as `deployments/llm42.yaml` shows. Unknown fields and wrong "
        "values are refused before anything starts, with the field's name, its value and what would be right.",
        "",
        "| Field | Type | Default | Meaning |",
        "|---|---|---|---|",
        *_fields(Config, ""),
    ]
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """docs/metrics.md: every metric that the parts export, and the foreign ones that our dashboards show."""
    lines = [
        "# Metrics",
        _HEAD,
        "Exported through `ray.serve.metrics` on each node's metrics port, where the names get the prefix `ray_` (and "
        "counters the suffix `_total`) and the labels `application`, `deployment` and `replica` are added. Counters "
        "are there from the start, with 0 for each value of their labels. Nothing of a request is a label. The "
        "dashboards in `grafana/` show them, and [runbook.md](runbook.md) says what to do about the alerts.",
    ]
    for part, declared in BY_PART.items():
        lines += ["", f"## {part}", "", "| Metric | Kind | Unit | Labels | Meaning |", "|---|---|---|---|---|"]
        for metric in declared:
            labels = "; ".join(_label(*label) for label in metric.labels.items())
            lines.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} |")
    lines += ["", "## Beside them", "", "What Ray and vLLM export on the same ports, and our dashboards use.", ""]
    lines += ["| Metric | Meaning |", "|---|---|", *(f"| `{name}` | {meaning} |" for name, meaning in FOREIGN.items())]
    return "\n".join(lines) + "\n"


def _label(name: str, values: tuple[str, ...]) -> str:
    return f"`{name}`: {', '.join(values)}" if values else f"`{name}`"


def _fields(model: type[BaseModel], prefix: str) -> list[str]:
    lines = []
    for name, field in model.model_fields.items():
        if section := _section(field.annotation):
            lines += _fields(section, f"{prefix}{name}.")
            continue
        default = "required" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"
        optional = _section(*get_args(field.annotation))
        kind = "section or None" if optional else _type(field.annotation)
        lines.append(f"| `{prefix}{name}` | {kind} | {default} | {field.description} |")
        if optional:
            lines += _fields(optional, f"{prefix}{name}.")
    return lines


def _section(*annotations: Any) -> type[BaseModel] | None:
    return next((a for a in annotations if isinstance(a, type) and issubclass(a, BaseModel)), None)


def _type(annotation: Any) -> str:
    text = getattr(annotation, "__name__", None) if isinstance(annotation, type) else None
    text = str(annotation) if text is None or "[" in str(annotation) else text
    return text.replace("typing.", "").replace("Literal", "one of ").replace("|", "or").replace("NoneType", "None")


if __name__ == "__main__":
    docs = Path("docs")
    (docs / "configuration.md").write_text(configuration())
    (docs / "metrics.md").write_text(metrics())
