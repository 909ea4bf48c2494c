"""A vLLM engine core without vLLM's frontend: requests in, outputs out, and calls to its workers.

Relies on vLLM 0.32.0: ``EngineArgs.create_engine_config``, ``Executor.get_class`` and
``EngineCoreClient.make_client``; that the client writes what start-up decides (number of KV blocks, block
size, fitted context) back into the ``VllmConfig``; and ``resources.engine_dead`` of the multiprocess client.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llm42.internals import require_vllm

if TYPE_CHECKING:
    from llm42.internals.draft_margins import MarginNotes


@dataclass(frozen=True, slots=True)
class EngineCore:
    """A running engine. ``client`` is vLLM's synchronous ``EngineCoreClient``:

    ``add_request(EngineCoreRequest)``, ``get_output() -> EngineCoreOutputs`` (in process: runs one step),
    ``abort_requests(ids)``, ``collective_rpc(method, timeout, args)``, ``shutdown()``. Not thread-safe.
    """

    client: Any
    vllm_config: Any
    margins: "MarginNotes | None" = None
    """Of drafts, where a draft sampler is in the engine and in this process."""

    @property
    def num_blocks(self) -> int:
        """KV blocks of the pool, vLLM's null block 0 included."""
        return int(self.vllm_config.cache_config.num_gpu_blocks)

    @property
    def block_size(self) -> int:
        """Tokens in a KV block."""
        return int(self.vllm_config.cache_config.block_size)

    @property
    def max_model_len(self) -> int:
        return int(self.vllm_config.model_config.max_model_len)

    @property
    def dead(self) -> bool:
        """Whether the engine's process has died; an engine in this process dies with it."""
        resources = getattr(self.client, "resources", None)
        return resources is not None and bool(resources.engine_dead)


def make_engine_core(engine_args: dict[str, Any], *, multiprocess: bool = False) -> EngineCore:
    """Load the model and start the engine, in this process or (``multiprocess``) in one of its own.

    ``engine_args`` are named as in ``vllm.EngineArgs``. Environment switches must be set before this call:
    vLLM reads many of them on import and freezes the rest here. Raises whatever vLLM raises.
    """
    require_vllm()
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core_client import EngineCoreClient
    from vllm.v1.executor import Executor

    args = EngineArgs(**engine_args)
    vllm_config = args.create_engine_config()
    client = EngineCoreClient.make_client(
        multiprocess_mode=multiprocess,
        asyncio_mode=False,
        vllm_config=vllm_config,
        executor_class=Executor.get_class(vllm_config),
        log_stats=not args.disable_log_stats,
    )
    return EngineCore(client, vllm_config)
