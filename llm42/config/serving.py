"""How requests are let in, verified, waited for and watched."""

import re
from typing import Literal

from pydantic import Field, model_validator

from llm42.config.frozen import Frozen
from llm42.protocol import Doubt, ReplayGrid, VerifyCadence


class Quota(Frozen):
    """What one API key may ask of the verifiers, in each router; without keys, all clients together."""

    deterministic_requests: int | None = Field(
        None,
        ge=1,
        description="Deterministic answers of one API key that one router works on at a time (a request's prompts "
        "times its `n`), replayed receipts included; one more is refused with a 429. By default no limit.",
    )
    deterministic_tokens_per_minute: int | None = Field(
        None,
        ge=1,
        description="Tokens, prompts included, of one API key's deterministic answers in one router; once they are "
        "used up, its deterministic requests are refused with a 429. By default no limit.",
    )


class Router(Frozen):
    """The HTTP ingress."""

    replicas: int = Field(1, ge=1, description="Ingress replicas (CPU only).")
    max_requests: int = Field(
        512,
        ge=1,
        description="Requests in one router at a time, and choices of theirs (prompts times `n`); one more is answered "
        "with a 503.",
    )
    api_keys_file: str | None = Field(
        None,
        min_length=1,
        description="File with the API keys, one a line, on each node where a router may be; everything but `/health` "
        "and `OPTIONS` then wants one. By default the key in the environment variable VLLM_API_KEY, or none is asked "
        "for.",
    )
    quota: Quota = Field(default_factory=Quota)
    arguments: list[str] = Field(
        default_factory=list, description="Further arguments of `vllm serve` for the OpenAI frontend."
    )


class Cadence(Frozen):
    """When candidates are sent to a verifier. Decides speed, never output."""

    mode: Literal["adaptive", "window", "margin"] = Field(
        "adaptive",
        description="window: at window boundaries and at the end; adaptive: also while a verifier has idle rows; "
        "margin: while it has, and close choices of the drafter make a contradiction likely.",
    )
    min_candidates: int = Field(
        8, ge=1, description="adaptive: fewest drafted tokens worth a pass before the window is full."
    )
    price: float = Field(
        2,
        gt=0,
        allow_inf_nan=False,
        description="margin: recomputed tokens, on average, that are worth a replay row of their own.",
    )

    @property
    def label(self) -> str:
        """The mode, and the one number that matters in it."""
        numbers = {"window": "", "adaptive": f" {self.min_candidates}", "margin": f" {self.price:g}"}
        return f"{self.mode}{numbers[self.mode]}"

    def policy(self, window_size: int) -> VerifyCadence:
        """For the sessions of one router, which learn together what a margin is worth."""
        return VerifyCadence(
            ReplayGrid(window_size),
            eager=self.min_candidates if self.mode == "adaptive" else None,
            doubt=Doubt(self.price) if self.mode == "margin" else None,
        )


class Timeouts(Frozen):
    """Seconds. Every cross-actor call has one."""

    replay_s: float = Field(
        60, gt=0, description="First try of a replay, queueing included; the next ones have up to four times as long."
    )
    verify_s: float = Field(180, gt=0, description="All tries of one replay; then the request fails with a 503.")
    draft_s: float = Field(
        30, gt=0, description="Without a drafted token for this long, the draft is restarted (deterministic requests)."
    )
    control_s: float = Field(10, gt=0, description="A control call: submit, abort, discover.")


class Audit(Frozen):
    """How a verifier shows that its kernels can carry the guarantee. There is no way around it."""

    start: Literal["quick", "full"] = Field(
        "quick",
        description="Audit of a verifier before it serves; a failure refuses to start. quick: seconds; full: some "
        "ten times as many passes.",
    )
    share: float = Field(
        0.01, ge=0, le=1, description="Share of the deterministic requests that are replayed again, once answered."
    )


class Traces(Frozen):
    """OpenTelemetry spans of deterministic requests. All else is settled by the standard `OTEL_*` variables."""

    endpoint: str | None = Field(
        None,
        description="OTLP collector that gets the spans of deterministic requests, such as `http://collector:4318`. By "
        "default there are none.",
    )
    protocol: Literal["http/protobuf", "grpc"] = Field(
        "http/protobuf", description="Of the collector at that port: usually http/protobuf at 4318, grpc at 4317."
    )

    @model_validator(mode="after")
    def _endpoint_is_an_address(self) -> "Traces":
        if self.endpoint is not None and not re.fullmatch(r"https?://[^\s/]+/?", self.endpoint):
            raise ValueError(
                f"endpoint is {self.endpoint!r}, not the address of a collector: make it one such as "
                "http://collector:4318, without a path"
            )
        return self
