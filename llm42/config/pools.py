"""The two pools of engines: how many, on what, and with which arguments of vLLM."""

from typing import Any

from pydantic import Field, model_validator

from llm42.config.frozen import Frozen


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
