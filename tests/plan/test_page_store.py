"""The counted pages behave as vLLM's do."""

import random
from array import array
from typing import Any

import pytest

from llm42.plan.page_store import PageStore
from llm42.verifier.pages import PageCache

BLOCK = 4


def history(pool: Any, seed: int) -> list[Any]:
    """What a page cache on ``pool`` does and finds, through a few hundred random jobs."""
    cache, rng, said, held = PageCache(pool, BLOCK, "f"), random.Random(seed), [], []
    for _ in range(400):
        if held and rng.random() < 0.5:
            table, keys = held.pop(rng.randrange(len(held)))
            for index in range(table.shared, rng.randint(table.shared, len(keys))):
                cache.publish(table, index, keys[index])
            cache.release(table)
        else:
            tokens = array("i", [rng.choice((1, 2)) for _ in range(BLOCK * rng.randint(1, 6))]).tobytes()
            keys = cache.keys(tokens)
            table = cache.acquire(len(keys), keys, rng.randint(0, len(keys)))
            if table is not None:
                said.append((table.shared, table.ids.tolist()))
                held.append((table, keys))
        said.append(pool.free)
    return said


@pytest.mark.parametrize("seed", range(5))
def test_the_same_pages_are_shared_taken_and_evicted(seed: int) -> None:
    from llm42.internals.block_pool import PagePool

    ours = history(PageStore(20), seed)
    assert ours == history(PagePool(21), seed)  # one more: vLLM's null block
    assert ours != history(PagePool(19), seed)
    assert any(isinstance(entry, tuple) and entry[0] for entry in ours)


def test_no_more_pages_than_there_are() -> None:
    store = PageStore(3)
    store.take(2)
    with pytest.raises(ValueError, match="2 pages wanted, 1 are free"):
        store.take(2)
