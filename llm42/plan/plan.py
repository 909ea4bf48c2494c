"""A plan: what is asked of which machines. One file, JSON or YAML."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from llm42.config import Frozen, wrong_fields
from llm42.plan.drift import Drift
from llm42.plan.fleet import Fleet
from llm42.plan.report import Report
from llm42.plan.simulation import Simulation
from llm42.plan.step_times import StepTimes, read_step_times
from llm42.plan.workload import Workload


class Target(Frozen):
    """When there are verifiers enough."""

    verifier_load: float = Field(0.8, gt=0, le=1, description="Most of the rows that verifiers could run, in use.")
    ttft_multiple: float = Field(
        3.0,
        gt=1,
        description="Most that the P95 TTFT of deterministic requests may be, over that of the same requests with none "
        "deterministic.",
    )


class Plan(Frozen):
    title: str = Field("", description="Printed above the prediction.")
    step_times: StepTimes = Field(description="As `llm42 bench calibrate` writes them, or the name of such a file.")
    workload: Workload
    fleet: Fleet = Field(default_factory=Fleet)
    drift: Drift = Field(default_factory=Drift)
    target: Target = Field(default_factory=Target)

    def with_fields(self, **sections: dict[str, Any]) -> "Plan":
        """Another plan, in which fields of ``workload``, ``fleet`` or ``drift`` differ. Raises ValueError."""
        data = self.model_dump(exclude_unset=True)
        for section, fields in sections.items():
            data[section] = {**data.get(section, {}), **fields}
        return _valid(data, "the plan")

    def predict(self, on_progress: Callable[[float], None] = lambda share: None) -> Report:
        return Simulation(self.step_times, self.workload, self.fleet, self.drift).run(on_progress)


def read_plan(path: Path) -> Plan:
    """Raises ValueError that names the file, the wrong field, and what would be right."""
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if isinstance(data, dict) and isinstance(data.get("step_times"), str):
        data["step_times"] = read_step_times(path.parent / data["step_times"])
    return _valid(data, str(path))


def _valid(data: object, name: str) -> Plan:
    try:
        return Plan.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"{name} is wrong:\n{wrong_fields(error)}") from None
