"""vLLM's own frontend (tokenizer, chat template, OpenAI routes, detokeniser, stop strings) on a core of ours.

Relies on vLLM 0.32.0: ``AsyncLLM.__init__`` takes its core from ``EngineCoreClient.make_async_mp_client``;
``build_app`` / ``init_app_state``; ``OutputProcessor.request_states`` and ``abort_requests``;
``GracefulHTTPError`` and ``VLLMValidationError`` pass through ``AsyncLLM.generate`` unchanged; ``lifespan`` reads
``app.state``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

from llm42.internals import require_vllm

SERVED_ROUTES = frozenset(
    """/health /version /openapi.json /v1/models /v1/completions /v1/chat/completions /tokenize /detokenize""".split()
)


@dataclass(frozen=True, slots=True)
class Frontend:
    """``app`` is the ASGI app, ``llm`` the AsyncLLM behind it, ``core`` the engine core behind that."""

    app: Any
    llm: Any
    core: Any

    @property
    def failed(self) -> bool:
        """Whether vLLM's output handler has died: nothing will be answered any more."""
        return bool(self.llm.errored)

    @property
    def generation_config(self) -> Mapping[str, Any]:
        """The model's own sampling defaults, as vLLM merges them into every request."""
        defaults: Mapping[str, Any] = self.llm.model_config.get_diff_sampling_param()
        return defaults

    @property
    def structured_outputs(self) -> Any:
        """vLLM's ``StructuredOutputsConfig``."""
        return self.llm.vllm_config.structured_outputs_config

    def fail(self, request_id: str, status: HTTPStatus, message: str, param: str | None = None) -> None:
        """End one request (all of it, with ``n`` > 1) with an HTTP error: an event, where its stream has begun.

        ``param`` names the parameter that is at fault, which only a 400 can say.
        """
        from vllm.exceptions import GracefulHTTPError, VLLMValidationError

        processor = self.llm.output_processor
        state = processor.request_states.get(request_id)
        if state is None:
            return  # it ended by itself meanwhile
        named = param is not None and status == HTTPStatus.BAD_REQUEST
        state.queue.put(VLLMValidationError(message, parameter=param) if named else GracefulHTTPError(message, status))
        whole = state.parent_req.request_id if state.parent_req is not None else request_id
        self.core.abort(processor.abort_requests([whole], internal=True))

    def shutdown(self) -> None:
        self.llm.shutdown()


async def make_frontend(core: Any, arguments: list[str], window_size: int) -> Frontend:
    """Build vLLM's frontend over ``core``, an ``EngineCoreClient`` that also has ``abort(request_ids)``.

    ``arguments`` are those of ``vllm serve``; the context is rounded down to whole windows. No weights are
    loaded. Raises what vLLM raises for a wrong model or argument.
    """
    require_vllm()
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    args = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    vllm_config = AsyncEngineArgs.from_cli_args(args).create_engine_config(UsageContext.OPENAI_API_SERVER)
    vllm_config.model_config.max_model_len -= vllm_config.model_config.max_model_len % window_size
    llm = _make_llm(vllm_config, core)
    app = build_app(args, ("generate",), llm.model_config)
    await init_app_state(llm, app.state, args, ("generate",))
    app.state.server = SimpleNamespace(should_exit=False)
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) in SERVED_ROUTES]
    return Frontend(app, llm, core)


def _make_llm(vllm_config: Any, core: Any) -> Any:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import EngineCoreClient
    from vllm.v1.executor import Executor

    original = EngineCoreClient.__dict__["make_async_mp_client"]
    EngineCoreClient.make_async_mp_client = staticmethod(lambda **_: core)
    try:
        return AsyncLLM(vllm_config, executor_class=Executor, log_stats=False, log_requests=False)
    finally:
        EngineCoreClient.make_async_mp_client = original
