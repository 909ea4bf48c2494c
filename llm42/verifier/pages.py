"""The window cache: pages of KV named by the tokens that made them.

A page holds one KV block (``block_size`` tokens). It belongs to one job until its block is complete and a pass
over it has succeeded; then it may be published under SHA-256(fingerprint, adapter, all tokens so far) and is never
written again. Only whole blocks are shared, so no page is ever both shared and written.
"""

import hashlib
import json
from array import array
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from llm42.protocol.messages import WORD


class Pool(Protocol):
    """What the cache needs of :class:`llm42.internals.block_pool.PagePool`."""

    capacity: int

    @property
    def free(self) -> int: ...
    def find(self, key: bytes) -> Any | None: ...
    def idle(self, page: Any) -> bool: ...
    def hold(self, pages: list[Any]) -> None: ...
    def take(self, count: int) -> list[Any]: ...
    def publish(self, page: Any, key: bytes) -> None: ...
    def release(self, pages: list[Any]) -> None: ...


@dataclass(slots=True, eq=False)
class PageTable:
    """One job's pages, in the order of its blocks. Each is held until :meth:`PageCache.release`."""

    pages: list[Any]
    ids: "array[int]"
    """Their KV block ids (int32)."""
    shared: int
    """``pages[:shared]`` came from the cache."""


class PageCache:
    """Hands out page tables. ``fingerprint`` separates pages of different arithmetic."""

    def __init__(self, pool: Pool, block_size: int, fingerprint: str) -> None:
        self._pool = pool
        self._block_bytes = block_size * WORD
        self._root = hashlib.sha256(fingerprint.encode()).digest()

    @property
    def capacity(self) -> int:
        """Pages that one job can have at most."""
        return self._pool.capacity

    def keys(self, tokens: bytes, salt: str = "", adapter: str = "") -> list[bytes]:
        """The names of the complete blocks of packed ``tokens``; each covers all tokens before it too, ``salt`` and
        ``adapter``."""
        keys, parent = [], self._root
        if salt or adapter:
            parent = hashlib.sha256(parent + json.dumps([salt, adapter]).encode()).digest()
        for end in range(self._block_bytes, len(tokens) + 1, self._block_bytes):
            parent = hashlib.sha256(parent + tokens[end - self._block_bytes : end]).digest()
            keys.append(parent)
        return keys

    def acquire(self, count: int, keys: list[bytes], shareable: int) -> PageTable | None:
        """``count`` pages at once, or None while too few are free: who waits holds nothing.

        The longest published prefix of ``keys[:shareable]`` is shared; the rest are new pages to write.
        """
        shared: list[Any] = []
        for key in islice(keys, shareable):
            page = self._pool.find(key)
            if page is None:
                break
            shared.append(page)
        idle = sum(self._pool.idle(page) for page in shared)
        if count - len(shared) > self._pool.free - idle:
            return None
        self._pool.hold(shared)  # first: taking new pages may evict whatever nobody holds
        pages = shared + self._pool.take(count - len(shared))
        return PageTable(pages, array("i", [page.block_id for page in pages]), len(shared))

    def adopt(self, table: PageTable, index: int, keys: list[bytes], shareable: int) -> int:
        """Share what others have published meanwhile, from block ``index`` on, in place of unwritten pages.

        Returns the first block that is still to be computed.
        """
        while index < shareable and (page := self._pool.find(keys[index])) is not None:
            self._pool.hold([page])
            self._pool.release([table.pages[index]])
            table.pages[index], table.ids[index] = page, page.block_id
            index += 1
        return index

    def publish(self, table: PageTable, index: int, key: bytes) -> None:
        """Share a page just completed, unless its content is shared already: then it stays scratch."""
        if self._pool.find(key) is None:
            self._pool.publish(table.pages[index], key)

    def release(self, table: PageTable) -> None:
        """Give all pages back; the tail is evicted before what it depends on."""
        self._pool.release(table.pages[::-1])
