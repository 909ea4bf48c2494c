"""What one step of a model takes on some hardware: the only thing that a plan cannot know by itself.

Measured by ``llm42 bench calibrate``, or entered from what others publish. All times are in seconds.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator

from llm42.config import Frozen, wrong_fields

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _by_size(table: dict[int, float]) -> dict[int, float]:
    if not table or min(table) < 1 or min(table.values()) <= 0:
        raise ValueError("give at least one entry like {1: 0.008}: sizes from 1 on, times above 0")
    return dict(sorted(table.items()))


class DraftTimes(Frozen):
    """A step of a fast path engine, as its loop sees it: scheduling and sampling included."""

    decode_s: Annotated[dict[int, Seconds], AfterValidator(_by_size)] = Field(
        description="Of a step that decodes so many sequences and nothing else; between two sizes the times are "
        "interpolated, past the largest its slope is kept."
    )
    prefill_step_s: Seconds = Field(
        0, description="Of a step with prompt tokens only, before any token is counted. In a mixed step: nothing."
    )
    prefill_token_s: Seconds = Field(description="More for each prompt token that a step computes.")
    context_token_s: Seconds = Field(
        0, description="More for each token of context of the sequences that a step decodes, above what decode_s has."
    )

    def step_s(self, sequences: int, prefill: int, context: int) -> float:
        """Of a step that decodes ``sequences`` with ``context`` tokens in all, and computes ``prefill`` prompt
        tokens."""
        base = interpolate(self.decode_s, sequences) if sequences else self.prefill_step_s
        return base + self.prefill_token_s * prefill + self.context_token_s * context


class ReplayTimes(Frozen):
    """A replay pass of one shape, as a verifier's loop sees it: packing and the way to the model included."""

    rows: int = Field(ge=1, description="G: windows in a pass.")
    window: int = Field(ge=1, description="W: tokens in a window.")
    pass_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        description="Of a pass that answers nothing: the forward computation of the whole shape."
    )
    asked_row_s: Seconds = Field(0, description="More for each block of W asked slots: LM head and choice.")


class WireTimes(Frozen):
    """What lies between the parts, while nobody waits."""

    request_s: Seconds = Field(
        0, description="HTTP, chat template and tokenizer before a router acts, and back, but for host.request_s."
    )
    draft_s: Seconds = Field(0, description="From a router's order (start, stop) to the engine's next possible step.")
    item_s: Seconds = Field(0, description="From the end of an engine step to the router that gets its tokens.")
    replay_s: Seconds = Field(0, description="A replay's way to a verifier and back, without its time there.")


class HostTimes(Frozen):
    """CPU time of all that is no engine (routers, proxies, Ray, clients), where that runs on the cores that fast path
    engines compute on. Nothing where they have cores, or devices, of their own, as verifiers always have here."""

    background: Annotated[float, Field(ge=0, lt=1)] = Field(0, description="Cores that are busy while nobody asks.")
    request_s: Seconds = Field(0, description="For each request, before a router acts: those that come together wait.")
    step_s: Seconds = Field(0, description="For each step of a fast path engine, whose tokens travel together.")
    ordinary_token_s: Seconds = Field(0, description="For each token of an ordinary answer.")
    deterministic_token_s: Seconds = Field(0, description="For each token of a deterministic one.")


class StepTimes(Frozen):
    """Of one model on one kind of hardware. At least one shape of replay pass; others are estimated by their size."""

    model: str = Field(min_length=1, description="Name, and dtype where it matters.")
    hardware: str = Field(min_length=1, description="What one engine of either pool runs on.")
    source: Literal["measured", "entered"] = Field(description="entered: published by others, or assumed.")
    note: str = Field("", description="Where each figure comes from.")
    draft: DraftTimes
    replay: tuple[ReplayTimes, ...] = Field(min_length=1)
    wire: WireTimes = Field(default_factory=WireTimes)
    host: HostTimes = Field(default_factory=HostTimes)

    @model_validator(mode="after")
    def _one_of_each_shape(self) -> "StepTimes":
        shapes = [(times.rows, times.window) for times in self.replay]
        if len(set(shapes)) != len(shapes):
            raise ValueError(f"replay names a shape (rows, window) twice: {shapes}")
        return self

    def replay_of(self, rows: int, window: int) -> ReplayTimes:
        """Of a pass of that shape. One that is not among :attr:`replay` takes as long as its slots do there."""
        for times in self.replay:
            if (times.rows, times.window) == (rows, window):
                return times
        passes: dict[int, list[float]] = {}
        slots: dict[int, list[float]] = {}
        for times in self.replay:
            size = times.rows * times.window
            passes.setdefault(size, []).append(times.pass_s)
            slots.setdefault(size, []).append(times.asked_row_s / times.window)
        size = rows * window
        return ReplayTimes(
            rows=rows,
            window=window,
            pass_s=interpolate(_means(passes), size),
            asked_row_s=interpolate(_means(slots), size) * window,
        )


def read_step_times(path: Path) -> StepTimes:
    """From a JSON or YAML file. Raises ValueError that names the file, the wrong field, and what would be right."""
    try:
        return StepTimes.model_validate(yaml.safe_load(path.read_text()))
    except ValidationError as error:
        raise ValueError(f"{path} holds no step times:\n{wrong_fields(error)}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def interpolate(table: Mapping[int, float], size: int) -> float:
    """Linear between the sizes of ``table``, which rise; below the smallest its value, beyond the largest by the last
    slope unless that falls."""
    sizes = list(table)
    above = next((index for index, known in enumerate(sizes) if known >= size), len(sizes))
    if above == 0 or len(sizes) == 1:
        return table[sizes[0]]
    low, high = sizes[min(above, len(sizes) - 1) - 1], sizes[min(above, len(sizes) - 1)]
    slope = (table[high] - table[low]) / (high - low)
    return table[high] + (size - high) * (slope if size < high else max(slope, 0.0))


def _means(values: Mapping[int, list[float]]) -> dict[int, float]:
    return {size: sum(values[size]) / len(values[size]) for size in sorted(values)}
