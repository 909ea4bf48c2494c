"""What stands in front of vLLM's app, in its order: who has no key costs nothing, who is too many costs little."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.types import ASGIApp

from llm42.config import Config
from llm42.internals.api_keys import key_index
from llm42.router.body import BodyMiddleware
from llm42.router.disconnect import DisconnectMiddleware
from llm42.router.identity import IdentityRoute
from llm42.router.keys import KeyMiddleware
from llm42.router.middleware import DeterminismMiddleware
from llm42.router.overload import OverloadMiddleware
from llm42.router.quota import Quotas
from llm42.router.verifiers import VerifierPool


def in_front_of(
    app: ASGIApp,
    config: Config,
    keys: Sequence[str],
    generation_config: Mapping[str, Any],
    verifiers: VerifierPool,
    quotas: Quotas,
) -> ASGIApp:
    """``app`` behind all of ours, the innermost first."""

    async def fingerprint() -> str:
        return str((await verifiers.describe())["fingerprint"])

    app = DisconnectMiddleware(app)
    most = config.router.max_requests
    app = DeterminismMiddleware(app, config.determinism, generation_config, fingerprint, quotas, most)
    app = IdentityRoute(app, verifiers.describe)
    app = BodyMiddleware(app)
    app = OverloadMiddleware(app, most)
    return KeyMiddleware(app, key_index(keys)) if keys else app
