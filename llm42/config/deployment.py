"""Everything in ``args``, and what must hold between its parts."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from llm42.config.frozen import Frozen, wrong_fields
from llm42.config.pools import FastPath, Verifier
from llm42.config.serving import Audit, Cadence, Router, Timeouts, Traces

DEFAULT_VERIFY_BATCH_SIZE = 4
RUN_AHEAD_WINDOWS = 4

_NOT_THE_VERIFIERS = {
    "model": "set `model` at the top of the configuration",
    "dtype": "set `dtype` at the top of the configuration",
    "max_model_len": "set `max_model_len` at the top of the configuration",
    "enforce_eager": "replay passes run eagerly",
    "enable_prefix_caching": "the verifier keeps its own window cache",
    "tokenizer": "the model's own is used",
    "load_format": "weights are digested while they load",
    "worker_extension_cls": "it carries the replay pass",
}
_ADAPTER_ARGUMENTS = ("enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank")
_NOT_THE_ROUTERS = (
    *("--model", "--served-model-name", "--dtype", "--max-model-len", "--max-num-queued-reqs"),
    *("--api-key", "--fingerprint-mode", "--fingerprint-value", "--config", "--root-path"),
    *("--enable-lora", "--lora-modules", "--revision"),
)


def _yaml_switch(value: object) -> object:
    """YAML 1.1 reads a bare ``off`` / ``on`` as a boolean; here they are words."""
    return {False: "off", True: "on"}[value] if isinstance(value, bool) else value


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
