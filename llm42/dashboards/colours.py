"""One colour for one meaning, on every panel of every dashboard. Grafana's own palette, as hex for other renderers."""

GOOD, WARNING, BAD, CALM = "#73BF69", "#FF9830", "#F2495C", "#8AB8FF"
_IDLE, _WASTE, _PREFILL, _BUSY = "#6E7681", "#FF780A", "#B877D9", "#5794F2"

MEANINGS = {
    # Who
    "deterministic": "#5794F2",
    "ordinary": "#FADE2A",
    "Router": "#8AB8FF",
    "FastPath": "#FADE2A",
    "Verifier": "#5794F2",
    "in use": "#5794F2",
    "advised": GOOD,
    # What becomes of tokens
    "drafted": "#8AB8FF",
    "verified": _BUSY,
    "accepted": GOOD,
    "committed": GOOD,
    "rolled back": _WASTE,
    "recomputed": BAD,
    "prompt": _PREFILL,
    "generation": "#FADE2A",
    # How requests, audits and calls end
    "finished": GOOD,
    "stopped": "#8AB8FF",
    "unverifiable": BAD,
    "refused": WARNING,
    "error": "#C4162A",
    "confirmed": GOOD,
    "mismatch": BAD,
    "skipped": _IDLE,
    "unanswered": WARNING,
    "died": BAD,
    "busy": WARNING,
    "failed": "#C4162A",
    "fingerprint": _PREFILL,
    "requests": WARNING,
    "tokens": _WASTE,
    "400": CALM,
    "401": _PREFILL,
    "429": _WASTE,
    "500": "#C4162A",
    "503": WARNING,
    # Passes
    "decode": _BUSY,
    "mixed": "#33B5E5",
    "prefill": _PREFILL,
    "full": "#1F60C4",
    "partial": _BUSY,
    "padding": _IDLE,
    "answered": _BUSY,
    "again": _WASTE,
    "model": _BUSY,
    "head": "#33B5E5",
    "choice": GOOD,
    "rest": _IDLE,
    # States
    "running": _BUSY,
    "waiting": WARNING,
    "held": _BUSY,
    "free": _IDLE,
    "hit": GOOD,
    "miss": WARNING,
    "eviction": BAD,
    "rebuild": _WASTE,
    # Sizes of the same thing
    "mean": "#C0D8FF",
    "p10": "#C0D8FF",
    "p50": "#73BF69",
    "p90": "#FF9830",
    "p95": "#FF9830",
    "p99": "#F2495C",
    "oldest now": BAD,
}
"""By legend. ``deterministic p95`` has the colour of its first word, drawn lighter by a dash."""


def colour_of(legend: str) -> str | None:
    """None: it has no fixed meaning (the name of a replica, say)."""
    if legend in MEANINGS:
        return MEANINGS[legend]
    first, _, rest = legend.rpartition(" ")
    return MEANINGS.get(first) if rest in ("p50", "p95", "p99", "mean") else None


def dashed(legend: str) -> bool:
    """The upper one of two sizes of the same thing."""
    return " " in legend and legend.endswith(("p95", "p99"))
