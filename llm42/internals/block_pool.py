"""vLLM's block pool, used on its own: reference counts, LRU eviction, lookup by content.

Relies on vLLM 0.32.0: ``BlockPool`` taking block 0 out as its null block, ``get_new_blocks`` evicting the least
recently freed, ``free_blocks`` evicting in the given order, and ``cache_full_blocks`` reading nothing of a
request but its ``block_hashes`` while KV events are off.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from vllm.v1.core.block_pool import BlockPool

_GROUP = 0  # the only KV cache group


class PagePool:
    """Pages of KV memory, ids ``1 .. num_blocks - 1``. A page is free while nobody holds it.

    A free page that was published stays findable until it is taken again, least recently freed first.
    ``Any`` stands for vLLM's ``KVCacheBlock``; only ``block_id`` of it is used outside this module.
    """

    def __init__(self, num_blocks: int) -> None:
        # The pool hashes nothing itself: its block sizes are only bookkeeping of its callers.
        self._pool = BlockPool(num_blocks, enable_caching=True, hash_block_size=1)
        self.capacity = num_blocks - 1
        self.evictions = 0
        """Published pages that were taken for something else, so far."""

    @property
    def free(self) -> int:
        return int(self._pool.get_num_free_blocks())

    def find(self, key: bytes) -> Any | None:
        """The published page of that content, held or free."""
        blocks = self._pool.get_cached_block(key, [_GROUP])
        return blocks[0] if blocks else None

    def idle(self, page: Any) -> bool:
        """Whether nobody holds the page: holding it takes it out of the free ones."""
        return bool(page.ref_cnt == 0)

    def hold(self, pages: Sequence[Any]) -> None:
        self._pool.touch(pages)

    def take(self, count: int) -> list[Any]:
        """``count`` pages to write, held once. Raises ValueError if fewer are free."""
        published = len(self._pool.cached_block_hash_to_block)
        pages: list[Any] = self._pool.get_new_blocks(count)
        self.evictions += published - len(self._pool.cached_block_hash_to_block)
        return pages

    def publish(self, page: Any, key: bytes) -> None:
        """Make a held page findable; it must not be written from now on. The key must not be published yet."""
        self._pool.cache_full_blocks(SimpleNamespace(block_hashes=[key]), [page], 0, 1, 1, _GROUP)

    def release(self, pages: Sequence[Any]) -> None:
        """Give up one hold of each; the first become free first, and so are evicted first."""
        self._pool.free_blocks(pages)
