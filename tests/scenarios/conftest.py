"""The deployment of the end-to-end tests, asked in two ways."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from tests.e2e.client import Answer
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import cluster
from tests.scenarios.ask import Request, Side, Sides

__all__ = ["cluster"]

Ask = Callable[[Cluster], AbstractAsyncContextManager[Sides]]


@asynccontextmanager
async def asking(
    url: str, first: dict[bool, dict[Request, Answer]], fingerprints: set[str | None]
) -> AsyncIterator[Sides]:
    """Both ways to ask a server; see :class:`Side` for ``first`` and ``fingerprints``."""
    deterministic, ordinary = (
        Side(url, deterministic=flag, first=first.setdefault(flag, {}), fingerprints=fingerprints)
        for flag in (True, False)
    )
    async with deterministic.openai, ordinary.openai:
        yield Sides(deterministic, ordinary, fingerprints)


@pytest.fixture(scope="session")
def ask_of() -> Ask:
    """Both ways to ask a cluster. The answers that count are those of the whole run, whatever is deployed meanwhile."""
    first: dict[bool, dict[Request, Answer]] = {}
    fingerprints: set[str | None] = set()
    return lambda cluster: asking(cluster.url, first, fingerprints)


@pytest.fixture
async def sides(cluster: Cluster, ask_of: Ask) -> AsyncIterator[Sides]:
    async with ask_of(cluster) as sides:
        yield sides
