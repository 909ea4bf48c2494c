"""Pages of KV memory that are only counted: what :class:`llm42.verifier.pages.PageCache` needs of vLLM's block pool."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Page:
    block_id: int
    holds: int = 0
    key: bytes | None = None


class PageStore:
    """``capacity`` pages. One that was published and nobody holds stays findable until it is taken: after all that
    have no content, and least recently released first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._made = 0
        """Pages so far: each when it is first needed."""
        self._blank: list[Page] = []
        """Free, without content that anybody could find; the last is taken first."""
        self._kept: OrderedDict[int, Page] = OrderedDict()
        """Free, with content."""
        self._published: dict[bytes, Page] = {}

    @property
    def free(self) -> int:
        return self.capacity - self._made + len(self._blank) + len(self._kept)

    def find(self, key: bytes) -> Page | None:
        return self._published.get(key)

    def idle(self, page: Page) -> bool:
        return page.holds == 0

    def hold(self, pages: Iterable[Page]) -> None:
        for page in pages:
            self._kept.pop(page.block_id, None)
            page.holds += 1

    def take(self, count: int) -> list[Page]:
        """Held once. Raises ValueError if fewer are free."""
        if count > self.free:
            raise ValueError(f"{count} pages wanted, {self.free} are free")
        return [self._take() for _ in range(count)]

    def publish(self, page: Page, key: bytes) -> None:
        page.key = key
        self._published[key] = page

    def release(self, pages: Sequence[Page]) -> None:
        """The first become free first."""
        blank = []
        for page in pages:
            page.holds -= 1
            if page.holds:
                continue
            if page.key is None:
                blank.append(page)
            else:
                self._kept[page.block_id] = page
        self._blank += reversed(blank)

    def _take(self) -> Page:
        if self._blank:
            page = self._blank.pop()
        elif self._made < self.capacity:
            self._made += 1
            page = Page(self._made)
        else:
            page = self._kept.popitem(last=False)[1]
            assert page.key is not None
            del self._published[page.key]
        page.holds, page.key = 1, None
        return page
