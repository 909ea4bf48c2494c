"""The scheduler and the window cache against a model that remembers what every page holds."""

import hashlib
import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm42.internals.block_pool import PagePool
from llm42.protocol import Haste, Question
from llm42.protocol.errors import ReplayFailed, ReplayRefused, VerifierBusy
from llm42.protocol.messages import pack_tokens, unpack_tokens
from llm42.verifier.jobs import PATIENCE, Job
from llm42.verifier.pages import PageCache
from llm42.verifier.passes import Pass, PassOutput, PassShape, Row, RowOutput
from llm42.verifier.scheduler import Scheduler

WINDOW, CONTEXT = 2, 24


def canonical(tokens: list[int]) -> int:
    """The next token after these: depends on each of them."""
    return int.from_bytes(hashlib.sha256(pack_tokens(tokens)).digest()[:2], "big")


def in_place(running: Pass) -> list[tuple[int, Row]]:
    """The rows with their places in the pass."""
    return [((running.first + number) % running.shape.rows, row) for number, row in enumerate(running.rows)]


@dataclass
class RememberingModel:
    """Runs a pass as the kernels do: all rows write, then all rows attend; and checks what they find."""

    shape: PassShape
    pool: PagePool
    memory: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """(page, window in the page) -> the whole token prefix that its K/V stands for."""

    def run(self, running: Pass) -> PassOutput:
        shape, sent = self.shape, running.input
        starts, tables = unpack_tokens(sent.starts), unpack_tokens(sent.tables)
        per_block = shape.block // shape.window
        places = {}
        for index, row in in_place(running):
            assert starts[index] == row.window * shape.window
            page = row.job.table.pages[row.window // per_block]
            assert page.block_id == tables[index * shape.blocks + row.window // per_block]
            assert page.block_hash is None, "a published page is written"
            assert page.ref_cnt == 1, "a shared page is written"
            place = (page.block_id, row.window % per_block)
            assert place not in places, "two rows write one place"
            places[place] = index
            end = min(starts[index] + shape.window, row.job.length)
            self.memory[place] = unpack_tokens(row.job.question.tokens)[:end]
        for index in set(range(shape.rows)) - {index for index, _ in in_place(running)}:
            assert starts[index] == 0
            assert not any(tables[index * shape.blocks : (index + 1) * shape.blocks]), "padding off the null block"
        for index, row in in_place(running):
            tokens = unpack_tokens(row.job.question.tokens)
            table = tables[index * shape.blocks :][: shape.blocks]
            for window in range(row.window + 1):
                expected = tokens[: (window + 1) * shape.window]
                assert self.memory[table[window // per_block], window % per_block] == expected, "wrong K/V is read"
        return self._choose(running)

    def _choose(self, running: Pass) -> PassOutput:
        shape = self.shape
        outputs = []
        placed = dict(in_place(running))
        for index, first, last in running.input.asked:
            row = placed[index]
            tokens = unpack_tokens(row.job.question.tokens)
            chosen = [canonical(tokens[: row.window * shape.window + slot + 1]) for slot in range(first, last)]
            packed, logprobs = pack_tokens(chosen), struct.pack(f"{len(chosen)}f", *chosen)
            outputs.append(RowOutput(packed, logprobs, packed, bytes([1] * len(chosen)), b"", b""))
        return PassOutput(outputs)


class World:
    def __init__(self, rows: int, windows_per_block: int, pages: int, max_queued: int = 100) -> None:
        self.shape = PassShape(rows, WINDOW, WINDOW * windows_per_block, CONTEXT)
        self.pool = PagePool(pages + 1)
        self.cache = PageCache(self.pool, self.shape.block, "fingerprint")
        self.scheduler = Scheduler(self.shape, self.cache, max_queued)
        self.model = RememberingModel(self.shape, self.pool)
        self.next = self.scheduler.plan()
        self.flying: Pass | None = None
        self.live: list[Job] = []
        self.done: list[Job] = []
        self.passes_without_prefill = 0

    def submit(
        self, tokens: list[int], start: int, fresh: bool = False, haste: Haste = Haste.URGENT, salt: str = ""
    ) -> Job | None:
        keys = self.cache.keys(pack_tokens(tokens), salt)
        job = Job(self.shape, Question(pack_tokens(tokens), start), keys, fresh, haste)
        try:
            self.scheduler.submit(job)
        except ReplayRefused:
            assert job.blocks > self.pool.capacity
            return None
        self.next = self.scheduler.plan()
        self.live.append(job)
        return job

    def cancel(self, index: int) -> None:
        if self.live:
            assert self.scheduler.cancel(self.live.pop(index % len(self.live)))
            self.next = self.scheduler.plan()

    def begin(self) -> None:
        """Run what was prepared, and prepare the next, as the engine does."""
        if self.flying is not None or not self.next.rows:
            return
        self.flying = self.next
        self._check_order(self.flying)
        self.scheduler.begin(self.flying)
        self.next = self.scheduler.plan()

    def _check_order(self, planned: Pass) -> None:
        running = list(self.scheduler._running)
        decoding = [window for job in running if not (job.prefilling or job.yields) for window in job.pending]
        prefilling = [job for job in running if job.prefilling]
        decode = sum(not (row.job.prefilling or row.job.yields) for row in planned.rows)
        others = sum(not row.job.prefilling and row.job.yields for row in planned.rows)
        if sum(len(job.pending) for job in running) >= self.shape.rows:
            assert planned.idle_rows == 0
        if len(decoding) + sum(len(job.pending) for job in prefilling) >= self.shape.rows:
            assert others == 0, "what could wait has the row of what cannot"
        if not prefilling or any(row.job.prefilling for row in planned.rows):
            self.passes_without_prefill = 0
        else:
            self.passes_without_prefill += 1
        assert self.passes_without_prefill <= (1 if self.shape.rows == 1 else 0), "prefill starves"
        if self.shape.rows > 1:
            reserved = max(1, self.shape.rows // 4) if prefilling else 0
            assert decode >= min(len(decoding), self.shape.rows - reserved), "decode does not go first"

    def end(self, *, ok: bool) -> None:
        if self.flying is None:
            return
        ended, self.flying = self.flying, None
        if ok:
            done = self.scheduler.end(ended, self.model.run(ended))
        else:
            done = self.scheduler.fail(ended, ReplayFailed("planted"))
            assert {job for job in ended.jobs if job in self.live} == set(done)
        if self.next.idle_rows or not ok:
            self.next = self.scheduler.plan()
        for job in done:
            self.live.remove(job)
            self.done.append(job)
            tokens = unpack_tokens(job.question.tokens)
            if job.error is None:
                expected = [canonical(tokens[: position + 1]) for position in range(job.question.start, job.length)]
                assert job.scores.tokens == expected
                assert struct.unpack(f"{len(expected)}f", job.scores.logprobs) == tuple(expected)

    def drain(self) -> None:
        self.end(ok=True)
        for _ in range(10_000):
            self.begin()
            if self.flying is None:
                break
            self.end(ok=True)
        assert not self.live, "a job was never answered"
        assert len(self.scheduler) == 0
        assert self.pool.free == self.pool.capacity, "pages leaked"
        published = [page.block_hash for page in self.pool._pool.blocks if page.block_hash is not None]
        assert len(set(published)) == len(published), "one content is published twice"


# Few distinct tokens, so that sequences share prefixes and diverge inside blocks.
sequences = st.lists(st.integers(0, 1), min_size=1, max_size=CONTEXT)
actions = st.one_of(
    st.tuples(st.just("submit"), sequences, st.integers(0, CONTEXT), st.booleans(), st.sampled_from(Haste)),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("begin")),
    st.tuples(st.just("end"), st.sampled_from([True, True, True, False])),
)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(4, 40), st.lists(actions, max_size=60))
def test_every_interleaving(rows: int, windows_per_block: int, pages: int, script: list[tuple]) -> None:  # type: ignore[type-arg]
    world = World(rows, windows_per_block, pages)
    for action, *arguments in script:
        match action:
            case "submit":
                tokens, start, fresh, haste = arguments
                world.submit(tokens, start % len(tokens), fresh, haste)
            case "cancel":
                world.cancel(*arguments)
            case "begin":
                world.begin()
            case "end":
                world.end(ok=arguments[0])
    world.drain()


@settings(max_examples=30, deadline=None)
@given(st.lists(sequences, min_size=2, max_size=8), st.integers(1, 4))
def test_answers_do_not_depend_on_the_cache(prompts: list[list[int]], rows: int) -> None:
    """Cold, hot, and with pages for one sequence only: the model itself checks all that is read."""
    for pages in (CONTEXT // WINDOW, 100):
        world = World(rows, 1, pages)
        for prompt in prompts * 2:
            world.submit(prompt, len(prompt) - 1)
        world.drain()
        assert len(world.done) == 2 * len(prompts)


def test_a_written_published_page_would_be_seen() -> None:
    """Negative control of the remembering model."""
    world = World(2, 1, 20)
    job = world.submit([1] * 10, 9)
    assert job is not None
    world.begin()
    assert job.table is not None
    world.pool.publish(job.table.pages[0], b"planted")
    with pytest.raises(AssertionError, match="published page is written"):
        world.end(ok=True)


def test_wrong_kv_would_be_seen() -> None:
    world = World(2, 1, 20)
    first = world.submit([1] * 10, 9)
    world.drain()
    assert first is not None
    world.model.memory = {place: [*prefix, 7] for place, prefix in world.model.memory.items()}
    world.submit([1] * 10, 9)
    world.begin()
    with pytest.raises(AssertionError, match="wrong K/V is read"):
        world.end(ok=True)


def test_a_fresh_job_reads_and_leaves_nothing_in_the_cache_and_moves() -> None:
    world = World(4, 1, 100)
    prompt = list(range(1, 21))
    world.submit(prompt, 19, fresh=True)
    world.drain()
    assert not any(page.block_hash for page in world.pool._pool.blocks)
    world.submit(prompt, 19)
    world.drain()
    places = set()
    for _ in range(6):
        world.submit(prompt, 19, fresh=True)
        windows = []
        while world.live:
            world.begin()
            assert world.flying is not None
            assert unpack_tokens(world.flying.input.tokens).count(0) == 0, "its neighbours are no zeros"
            windows += [row.window for row in world.flying.rows]
            places.add(world.flying.first)
            world.end(ok=True)
        assert windows == list(range(10)), "all of it, whatever is in the cache"
    assert places == {1, 2, 3}


def test_a_hot_prefix_is_skipped_and_siblings_share_a_running_prefill() -> None:
    world = World(2, 1, 100)
    prompt = list(range(20))
    for _ in range(8):
        world.submit(prompt, 19)
    passes = 0
    while world.live:
        world.begin()
        assert world.flying is not None
        passes += 1
        world.end(ok=True)
    # 10 windows once, and the last one again for each of the others (two rows a pass; a few are run twice).
    assert passes <= 5 + 8
    world.submit(prompt, 19)
    world.begin()
    assert world.flying is not None
    assert [row.window for row in world.flying.rows] == [9]
    assert world.scheduler.hits >= 9


def test_the_queue_is_bounded_and_the_impossible_refused() -> None:
    world = World(2, 1, 5, max_queued=2)
    with pytest.raises(ReplayRefused, match="6 KV pages"):
        world.scheduler.submit(Job(world.shape, Question(pack_tokens([1] * 11), 0), []))
    world.submit([1, 2], 0)
    world.submit([1, 2], 0)
    with pytest.raises(VerifierBusy):
        world.submit([1, 2], 0)
    world.drain()


def test_nobody_waits_for_a_fresh_job() -> None:
    """It needs pages that it cannot have yet; what came after it can."""
    world = World(4, 1, 10)
    running = world.submit([1] * 8, 7)
    world.scheduler.plan()
    fresh, small = world.submit([2] * 16, 15, fresh=True), world.submit([3] * 8, 7)
    world.scheduler.plan()
    assert [job is not None and job.table is not None for job in (running, fresh, small)] == [True, False, True]


def test_an_early_job_has_what_others_leave_but_not_for_ever() -> None:
    """The rows are taken by those that somebody waits for, prompts among them; then by it; then by an audit."""
    world = World(2, 1, 100)
    audit, early = world.submit([1] * 4, 3, fresh=True), world.submit([2], 0, haste=Haste.EARLY)
    world.submit([3] * 10, 9)  # four windows of a prompt, and one that answers
    world.begin()
    assert world.flying is not None
    assert [row.job.question.tokens[0] for row in world.flying.rows] == [3, 3]
    world.end(ok=True)
    assert early is not None
    assert early.passed == 1
    others = 0
    while early in world.live:
        world.submit([4 + others] * 2, 1)
        world.submit([104 + others] * 2, 1)
        others += 2
        world.begin()
        world.end(ok=True)
    assert PATIENCE <= early.passed <= PATIENCE + 1
    assert audit in world.live, "it has no patience: nobody waits for it at all"
    world.drain()


def test_requests_of_different_salts_share_no_page() -> None:
    world = World(2, 1, 100)
    prompt = list(range(20))
    hits = []
    for salt in ("", "mine", "mine", "yours"):
        world.submit(prompt, 19, salt=salt)
        world.drain()
        hits.append(world.scheduler.hits)
    assert hits == [0, 0, 9, 9], "only the same salt finds what was left"
