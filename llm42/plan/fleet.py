"""The machines, and how they are told to work. Names are those of :class:`llm42.config.Config` and of vLLM."""

import math

from pydantic import Field, model_validator

from llm42.config import DEFAULT_VERIFY_BATCH_SIZE, RUN_AHEAD_WINDOWS, Cadence, Frozen
from llm42.verifier.passes import PassShape
from llm42.verifier.settings import GPU_BLOCK


class Fleet(Frozen):
    """Two pools of engines. KV memory of the fast path is not simulated: ``max_num_seqs`` has to fit into it."""

    fast_paths: int = Field(1, ge=1, description="Engines that draft and answer ordinary requests.")
    verifiers: int = Field(1, ge=1, description="Engines that replay.")
    window_size: int = Field(32, ge=1, description="W: tokens in a replay window.")
    verify_batch_size: int = Field(DEFAULT_VERIFY_BATCH_SIZE, ge=1, description="G: windows in a replay pass.")
    cadence: Cadence = Field(default_factory=Cadence)
    run_ahead: int | None = Field(
        None, ge=1, description="Most drafted tokens that may wait for verification; by default 4 windows."
    )
    max_model_len: int = Field(8192, ge=2, description="Context, in tokens; longer requests are cut to it.")
    max_num_seqs: int = Field(256, ge=1, description="Most sequences in one step of a fast path engine.")
    max_num_batched_tokens: int = Field(8192, ge=1, description="Most tokens in one of its steps.")
    chunked_prefill: bool = Field(True, description="Whether a prompt may be spread over several steps.")
    prefix_cache: bool = Field(True, description="Whether a draft that starts again finds what it had computed.")
    block_size: int = Field(16, ge=1, description="KV block of the fast path, in tokens: cached is what fills one.")
    verifier_kv_tokens: int = Field(
        1 << 20, ge=1, description="KV memory of one verifier, in tokens: replays that do not fit wait."
    )
    max_queued: int = Field(1024, ge=1, description="Replays that one verifier holds.")

    @model_validator(mode="after")
    def _fits(self) -> "Fleet":
        if self.max_model_len < self.window_size:
            raise ValueError(f"max_model_len is {self.max_model_len}, less than window_size {self.window_size}")
        if self.max_run_ahead < self.window_size:
            raise ValueError(f"run_ahead is {self.max_run_ahead}, less than window_size {self.window_size}")
        if not self.chunked_prefill and self.max_num_batched_tokens < self.context:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}: without chunked_prefill a whole prompt must "
                f"fit into it; make it at least {self.context}"
            )
        if self.verifier_kv_tokens < self.context:
            raise ValueError(
                f"verifier_kv_tokens is {self.verifier_kv_tokens}, too few for one request of {self.context} tokens"
            )
        return self

    @property
    def context(self) -> int:
        """Whole windows of ``max_model_len``, in tokens."""
        return self.max_model_len // self.window_size * self.window_size

    @property
    def max_run_ahead(self) -> int:
        return self.run_ahead if self.run_ahead is not None else RUN_AHEAD_WINDOWS * self.window_size

    @property
    def shape(self) -> PassShape:
        block = math.lcm(self.window_size, GPU_BLOCK)
        return PassShape(self.verify_batch_size, self.window_size, block, self.context)
