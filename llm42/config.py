"""The configuration of a deployment: one frozen model, read from ``args`` in the Serve YAML.

Only what can be judged without loading a model is judged here; what needs the model or the machine is
judged by :mod:`llm42.preflight` before a replica starts.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from llm42.protocol import Doubt, ReplayGrid, VerifyCadence

DEFAULT_VERIFY_BATCH_SIZE = 4
RUN_AHEAD_WINDOWS = 4

_NOT_THE_VERIFIERS = {
    "model": "set `model` at the top of the configuration",
    "dtype": "set `dtype` at the top of the configuration",
    "max_model_len": "set `max_model_len` at the top of the configuration",
    "enforce_eager": "replay passes run eagerly",
    "enable_prefix_caching": "the verifier keeps its own window cache",
    "load_format": "weights are digested while they load",
    "worker_extension_cls": "it carries the replay pass",
}
_ADAPTER_ARGUMENTS = ("enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank")
_NOT_THE_ROUTERS = (
    *("--model", "--served-model-name", "--dtype", "--max-model-len", "--max-num-queued-reqs"),
    *("--api-key", "--fingerprint-mode", "--fingerprint-value", "--config", "--root-path"),
    *("--enable-lora", "--lora-modules"),
)


def _yaml_switch(value: object) -> object:
    """YAML 1.1 reads a bare ``off`` / ``on`` as a boolean; here they are words."""
    return {False: "off", True: "on"}[value] if isinstance(value, bool) else value


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Autoscaling(Frozen):
    """How a pool follows its load, from engine to engine."""

    min_replicas: int = Field(1, ge=1, description="Fewest engines, also when there is nothing to do.")
    max_replicas: int = Field(ge=1, description="Most engines.")
    upscale_delay_s: float = Field(
        15, ge=0, description="How long engines must have been too few before there are more, in seconds."
    )
    downscale_delay_s: float = Field(
        300, ge=0, description="How long one engine must have been too many before it goes, in seconds."
    )

    @model_validator(mode="after")
    def _least_is_no_more_than_most(self) -> "Autoscaling":
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas is {self.max_replicas}, less than min_replicas {self.min_replicas}: raise the one or "
                "lower the other"
            )
        return self


class FastPathAutoscaling(Autoscaling):
    """By requests."""

    target_requests: int | None = Field(
        None,
        ge=1,
        description="Requests, running and waiting, that each engine should have. By default three quarters of what "
        "it can run at once: of its `max_num_seqs`, or of what its KV memory holds.",
    )


class VerifierAutoscaling(Autoscaling):
    """By queue wait."""

    target_wait_s: float = Field(
        0.25,
        gt=0,
        description="How long nine in ten replays may wait for their first row, in seconds; or two passes, where these "
        "take longer.",
    )


class Pool(Frozen):
    """What the two engine pools have in common."""

    replicas: int = Field(1, ge=1, description="Engines in this pool, one Serve replica each.")
    autoscaling: Autoscaling | None = Field(
        None, description="Instead of `replicas`: as many engines as the load needs."
    )
    threads: int = Field(1, ge=1, description="CPU threads of one engine; a verifier's are part of its fingerprint.")
    num_cpus: float | None = Field(
        None, ge=0, description="CPUs Ray reserves for a replica; by default its threads, or 1 beside a GPU."
    )
    num_gpus: float | None = Field(
        None, ge=0, description="GPUs Ray reserves for a replica; by default one per rank if the cluster has any."
    )
    resources: dict[str, float] = Field(
        default_factory=dict, description="Custom Ray resources, to pin this pool to its own nodes."
    )
    engine: dict[str, Any] = Field(
        default_factory=dict, description="Further vLLM engine arguments (names as in vllm.EngineArgs)."
    )
    env: dict[str, str] = Field(default_factory=dict, description="Further environment variables of a replica.")

    @property
    def ranks(self) -> int:
        """Processes that share one engine's model."""
        return int(self.engine.get("tensor_parallel_size", 1))

    @property
    def least(self) -> int:
        """Engines that there always are."""
        return self.replicas if self.autoscaling is None else self.autoscaling.min_replicas

    @property
    def most(self) -> int:
        """Engines that there may be."""
        return self.replicas if self.autoscaling is None else self.autoscaling.max_replicas

    @model_validator(mode="after")
    def _one_number_of_engines(self) -> "Pool":
        if self.autoscaling is not None and "replicas" in self.model_fields_set:
            raise ValueError(
                f"replicas is {self.replicas}, but autoscaling is set too: leave one of them out "
                "(autoscaling.min_replicas is the fewest, and what the pool starts with)"
            )
        return self


class FastPath(Pool):
    """The drafting pool: vLLM as it comes, fast and not repeatable."""

    autoscaling: FastPathAutoscaling | None = Field(
        None, description="Instead of `replicas`: as many engines as the requests need."
    )


class Verifier(Pool):
    """The replay pool: same model, fixed shape."""

    autoscaling: VerifierAutoscaling | None = Field(
        None, description="Instead of `replicas`: as many engines as keep the replays' wait short."
    )
    max_queued: int = Field(
        1024, ge=1, description="Replay requests that one verifier holds; one more is refused with a retryable error."
    )


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


class Config(Frozen):
    """Everything that `serve run` reads from ``args``."""

    model: str = Field("demo", min_length=1, description="`demo`, a local directory, or a hub id.")
    served_model_name: str | None = Field(None, min_length=1, description="Name in the API; by default the model's.")
    adapters: dict[str, str] = Field(
        default_factory=dict,
        description="LoRA adapters: name in the API to a local directory (on each node of both pools) or a hub id.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="Of both pools.")
    max_model_len: int | None = Field(
        None, ge=2, description="Context, in tokens; by default the model's. Rounded down to a multiple of window_size."
    )
    determinism: Annotated[Literal["off", "seeded", "on"], BeforeValidator(_yaml_switch)] = Field(
        "seeded",
        description="Which requests are deterministic unless they say: none, those with a `seed`, or all.",
    )
    window_size: int = Field(32, ge=1, description="W: tokens in a replay window.")
    verify_batch_size: int = Field(DEFAULT_VERIFY_BATCH_SIZE, ge=1, description="G: windows in a replay pass.")
    strict: bool = Field(False, description="G = 1: needs no row independence of the kernels.")
    cadence: Cadence = Field(default_factory=Cadence)
    run_ahead: int | None = Field(
        None, ge=1, description="Most drafted tokens that may wait for verification; by default 4 windows."
    )
    fast_path: FastPath = Field(default_factory=FastPath)
    verifier: Verifier = Field(default_factory=Verifier)
    router: Router = Field(default_factory=Router)
    timeouts: Timeouts = Field(default_factory=Timeouts)
    audit: Audit = Field(default_factory=Audit)
    traces: Traces = Field(default_factory=Traces)

    @model_validator(mode="before")
    @classmethod
    def _strict_is_one_row(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("strict") is True:
            if data.get("verify_batch_size", 1) != 1:
                raise ValueError(
                    f"verify_batch_size is {data['verify_batch_size']}, but strict mode replays one row at a time: "
                    "set it to 1, leave it out, or set strict to false"
                )
            return {**data, "verify_batch_size": 1}
        return data

    @model_validator(mode="after")
    def _combinations(self) -> "Config":
        if self.max_run_ahead < self.window_size:
            raise ValueError(
                f"run_ahead is {self.max_run_ahead}, less than window_size {self.window_size}: a window would never "
                f"fill; use at least {self.window_size}"
            )
        if self.max_model_len is not None and self.max_model_len < self.window_size:
            raise ValueError(
                f"max_model_len is {self.max_model_len}, less than window_size {self.window_size}: "
                "no window fits; raise it or choose a smaller window_size"
            )
        if self.timeouts.verify_s < self.timeouts.replay_s:
            raise ValueError(
                f"timeouts.verify_s is {self.timeouts.verify_s}, less than timeouts.replay_s "
                f"{self.timeouts.replay_s}: it bounds all tries together, so make it at least as long"
            )
        return self

    @model_validator(mode="after")
    def _adapters_have_names_of_their_own(self) -> "Config":
        if not all(name and path for name, path in self.adapters.items()):
            raise ValueError(f"adapters is {self.adapters}, but each needs a name and a directory or hub id")
        if (served := self.served_model_name or self.model) in self.adapters:
            raise ValueError(f"adapters has {served!r}, which is the model's own name: give the adapter another")
        return self

    @model_validator(mode="after")
    def _settled_elsewhere(self) -> "Config":
        for pool, engine in (("verifier", self.verifier.engine), ("fast_path", self.fast_path.engine)):
            for name in _ADAPTER_ARGUMENTS:
                if name in engine:
                    raise ValueError(f"{pool}.engine must not set {name}: it follows from `adapters`")
        for name, why in _NOT_THE_VERIFIERS.items():
            if name in self.verifier.engine:
                raise ValueError(f"verifier.engine must not set {name}: {why}")
        if "max_model_len" in self.fast_path.engine:
            raise ValueError(
                "fast_path.engine must not set max_model_len: a shorter context than the verifier's would end drafts "
                "and ordinary answers early; set `max_model_len` at the top of the configuration"
            )
        for argument in self.router.arguments:
            name = argument.partition("=")[0].replace("_", "-")
            # vLLM takes abbreviations.
            settled = next((full for full in _NOT_THE_ROUTERS if len(name) > 2 and full.startswith(name)), None)
            if settled == "--api-key":
                raise ValueError(
                    "router.arguments must not set --api-key: whoever reads the configuration would have the key; put "
                    "it into a file, and set router.api_keys_file"
                )
            if settled is not None:
                raise ValueError(
                    f"router.arguments must not set {settled} ({argument}): the configuration has a field for it, or "
                    "the router needs it"
                )
        return self

    @model_validator(mode="after")
    def _fixed_shape(self) -> "Config":
        rows, slots = self.verify_batch_size, self.verify_batch_size * self.window_size
        for name, least, why in (
            ("max_num_seqs", rows, f"verify_batch_size {rows}"),
            ("max_num_batched_tokens", slots, f"verify_batch_size x window_size = {rows} x {self.window_size}"),
        ):
            value = self.verifier.engine.get(name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(
                    f"verifier.engine.{name} is {value!r}, but a replay pass needs {why}: make it at least {least}, "
                    "or leave it out"
                )
        block = self.verifier.engine.get("block_size")
        if block is not None and (not isinstance(block, int) or block <= 0 or block % self.window_size):
            raise ValueError(
                f"verifier.engine.block_size is {block!r}, not a multiple of window_size {self.window_size}: a window "
                "must not straddle two KV blocks; leave it out, and the smallest that fits is used"
            )
        return self

    @property
    def adapter_numbers(self) -> dict[str, int]:
        """vLLM's number for each adapter, by name: the same in all processes of a deploy."""
        return {name: number for number, name in enumerate(sorted(self.adapters), start=1)}

    @property
    def max_run_ahead(self) -> int:
        """Most drafted tokens that may wait for verification."""
        return self.run_ahead if self.run_ahead is not None else RUN_AHEAD_WINDOWS * self.window_size


def read_config(args: dict[str, Any]) -> Config:
    """Raises ValueError with one line for each wrong field: its name, what it is, and what would be right."""
    try:
        return Config.model_validate(args)
    except ValidationError as error:
        raise ValueError(f"the configuration is wrong:\n{wrong_fields(error)}") from None


def wrong_fields(error: ValidationError) -> str:
    """One line for each wrong field: its name, what it is, and what would be right."""
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"]) or "args"
        given = "" if problem["type"] in ("missing", "value_error") else f" (got {problem['input']!r})"
        lines.append(f"  {name}: {problem['msg']}{given}")
    return "\n".join(lines)
