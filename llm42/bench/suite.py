"""The sizes of a whole run. ``quick`` takes an hour and a half on two cores, ``full`` hours."""

from dataclasses import dataclass

from llm42.bench.workload import Length, Mix

ALL = ("limit", "saturation", "offline", "neighbours", "online", "lone", "spans", "recompute")


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, and what is to be known of it."""

    model: str
    dtype: str
    experiments: tuple[str, ...] = ALL


@dataclass(frozen=True, slots=True)
class Suite:
    """Lanes are streams at a time; repeats and pairs are interleaved."""

    name: str
    subjects: tuple[Subject, ...]
    max_model_len: int
    window_size: int
    verify_batch_size: int
    steady: Mix
    """Fixed sizes: saturation, neighbours, recompute, arrivals."""
    mixes: tuple[Mix, ...]
    """Of offline throughput."""
    shares: tuple[float, ...]
    requests: int
    """Of an offline cell."""
    repeats: int
    lone: Mix
    spans: Mix
    span_requests: int
    pairs: int
    """Of conditions whose latencies are compared."""
    online_requests: int
    online_shares: tuple[float, ...]
    loads: tuple[float, ...]
    """Shares of the capacity at which requests arrive."""
    shapes: tuple[tuple[int, int], ...]
    """(W, G) of whole deployments: recompute."""
    passes: tuple[tuple[int, int], ...]
    """(W, G) of bare replay passes."""
    batches: tuple[int, ...]
    """Sequences in a bare decode step."""

    @property
    def lanes(self) -> int:
        """Twice as many streams as a pass has rows."""
        return 2 * self.verify_batch_size

    @property
    def limit_lanes(self) -> int:
        """So many that the drafting engine always has work, and the verifier nearly always."""
        return 8 * self.verify_batch_size


QUICK = Suite(
    name="quick",
    subjects=(
        Subject("demo", "float32", ("limit", "saturation", "neighbours", "online", "lone")),
        Subject("tiny", "bfloat16"),
    ),
    max_model_len=1024,
    window_size=32,
    verify_batch_size=4,
    steady=Mix("fixed", Length(64), Length(32)),
    mixes=(
        Mix("fixed", Length(64), Length(32)),
        Mix("sharegpt", Length(48, 1.0, 4, 384), Length(32, 0.8, 4, 128)),
        Mix("long", Length(480), Length(16)),
    ),
    shares=(0.0, 0.02, 0.1, 0.5, 1.0),
    requests=24,
    repeats=2,
    lone=Mix("lone", Length(64), Length(256)),
    spans=Mix("spans", Length(64), Length(192)),
    span_requests=12,
    pairs=10,
    online_requests=12,
    online_shares=(0.0, 0.5, 1.0),
    loads=(0.7,),
    shapes=((16, 4), (64, 4)),
    passes=((16, 1), (16, 4), (32, 4), (64, 4), (32, 16)),
    batches=(1, 2, 4, 8, 16, 32),
)

FULL = Suite(
    name="full",
    subjects=(Subject("tiny", "bfloat16"), Subject("demo", "float32")),
    max_model_len=2048,
    window_size=32,
    verify_batch_size=4,
    steady=Mix("fixed", Length(128), Length(128)),
    mixes=(
        Mix("fixed", Length(128), Length(128)),
        Mix("sharegpt", Length(96, 1.1, 4, 1024), Length(128, 0.9, 4, 512)),
        Mix("long", Length(1536), Length(64)),
    ),
    shares=(0.0, 0.02, 0.1, 0.5, 1.0),
    requests=100,
    repeats=4,
    lone=Mix("lone", Length(64), Length(512)),
    spans=Mix("spans", Length(64), Length(512)),
    span_requests=48,
    pairs=12,
    online_requests=40,
    online_shares=(0.0, 0.1, 0.5, 1.0),
    loads=(0.4, 0.7),
    shapes=tuple((window, rows) for window in (16, 32, 64, 128) for rows in (1, 4, 16)),
    passes=tuple((window, rows) for window in (16, 32, 64, 128) for rows in (1, 2, 4, 8, 16)),
    batches=(1, 2, 4, 8, 16, 32),
)

SMOKE = Suite(
    name="smoke",
    subjects=(Subject("tiny", "float32"),),
    max_model_len=256,
    window_size=32,
    verify_batch_size=2,
    steady=Mix("fixed", Length(24), Length(8)),
    mixes=(Mix("fixed", Length(24), Length(8)),),
    shares=(0.0, 1.0),
    requests=4,
    repeats=1,
    lone=Mix("lone", Length(24), Length(16)),
    spans=Mix("spans", Length(24), Length(16)),
    span_requests=2,
    pairs=1,
    online_requests=3,
    online_shares=(0.0, 0.5, 1.0),
    loads=(0.7,),
    shapes=(),
    passes=((32, 2),),
    batches=(1, 2, 4, 16),
)
"""Sees that everything works; its figures mean nothing."""

SUITES = {suite.name: suite for suite in (QUICK, FULL, SMOKE)}
