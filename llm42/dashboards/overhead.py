"""What determinism costs, and where."""

from functools import partial
from typing import get_args

from llm42.dashboards.colours import CALM, GOOD, WARNING
from llm42.dashboards.panel import Dashboard, Panel, Query, Row, stat
from llm42.dashboards.promql import each, mean, quantile, quantiles, rate, rate_of, ratio, utilisation, value
from llm42.metrics import Histogram, fastpath, router, verifier

_MODES = get_args(router.Mode)


def _replicas(deployment: str) -> str:
    return value("ray_serve_deployment_replica_healthy", deployment=deployment)


def _overhead(metric: Histogram, what: str) -> Panel:
    deterministic, ordinary = (mean(metric, mode=mode) for mode in _MODES)
    return stat(
        f"{what}: overhead",
        f"{what} of deterministic requests against that of ordinary ones in the same time, means: 0 % is no overhead. "
        "Only as fair as their prompts and lengths are alike.",
        "percentunit",
        f"({deterministic}) / ({ordinary}) - 1",
        "overhead",
        width=6,
        base=GOOD,
        steps=((0.5, CALM), (2, WARNING)),
        decimals=0,
    )


def _by_mode(metric: Histogram, title: str, says: str) -> Panel:
    queries = tuple(
        Query(quantile(metric, share, mode=mode), f"{mode} p{100 * share:g}")
        for mode in _MODES
        for share in (0.5, 0.95)
    )
    return Panel(title, says, "s", queries)


_CLIENTS = Row(
    "What clients pay",
    (
        _overhead(router.FIRST_TOKEN, "Time to first token"),
        _overhead(router.OUTPUT_TOKEN, "Time per output token"),
        _overhead(router.REQUEST, "Request time"),
        stat(
            "Deterministic share",
            "Of the tokens on their way to clients.",
            "percentunit",
            ratio(rate(router.OUTPUT, mode="deterministic"), rate(router.OUTPUT)),
            "deterministic",
            width=6,
            base=CALM,
            decimals=0,
        ),
        _by_mode(
            router.FIRST_TOKEN,
            "Time to first token",
            "From arrival in the router to the first tokens on their way to the client. A deterministic one comes from "
            "the verifier, as soon as the prompt is replayed.",
        ),
        _by_mode(
            router.OUTPUT_TOKEN,
            "Time per output token",
            "Of each request, after its first tokens. Deterministic tokens arrive in bursts of a replay each; this is "
            "their mean.",
        ),
        _by_mode(router.REQUEST, "Request time", "From arrival to the last token, of requests that finished."),
        Panel(
            "Output tokens",
            "Tokens on their way to clients, a second.",
            "ops",
            each(router.OUTPUT, "mode", rate),
            stack="normal",
            width=12,
        ),
        Panel(
            "Requests in the routers",
            "By mode, now.",
            "none",
            each(router.RUNNING, "mode", value),
            stack="normal",
            width=12,
        ),
    ),
)

_VERIFIERS = Row(
    "The verifiers' work",
    (
        Panel(
            "Queue wait",
            "How long replays wait for their first row. Seconds here mean that the pool is too small.",
            "s",
            quantiles(verifier.WAIT_SECONDS, (0.5, 0.95, 0.99)),
        ),
        Panel(
            "Replays in the verifiers",
            "Those that run, and those that wait for pages.",
            "none",
            each(verifier.REPLAYS, "state", value),
            stack="normal",
        ),
        Panel(
            "Replays as routers see them",
            "From the question to a trustworthy answer, all tries together: queue, pass, and the way there and back.",
            "s",
            quantiles(router.REPLAY_SECONDS, (0.5, 0.95)),
        ),
        Panel(
            "Passes",
            "Replay passes a second, by what their rows do.",
            "ops",
            each(verifier.PASS_SECONDS, "kind", partial(rate_of, what="count")),
            stack="normal",
        ),
        Panel(
            "Pass time",
            "All passes have the same shape, so this is flat where nothing else computes on the device.",
            "s",
            quantiles(verifier.PASS_SECONDS, (0.5, 0.95)),
        ),
        Panel(
            "Where a pass's time goes",
            "Shares of the layers, the LM head, the choice of tokens, and what is around them.",
            "none",
            each(verifier.PART_SECONDS, "part", rate),
            stack="percent",
        ),
        Panel(
            "Rows",
            "What the G rows of the passes did. Much padding: passes go out before there is enough to do, which costs "
            "nothing while the pool has room.",
            "none",
            each(verifier.ROWS, "kind", rate),
            stack="percent",
            width=12,
        ),
        Panel(
            "Fill",
            "What the G x W slots of the passes did. Useful are answered and prefill; again: the same window, replayed "
            "before with fewer tokens.",
            "none",
            each(verifier.SLOTS, "kind", rate),
            stack="percent",
            width=12,
        ),
    ),
)

_VERIFYING, _DRAFTING = rate(verifier.PART_SECONDS), rate(fastpath.BUSY)

_POOLS = Row(
    "Are the pools in proportion?",
    (
        Panel(
            "Utilisation",
            "Share of the time in which an engine of the pool computes, mean of its replicas.",
            "percentunit",
            (
                Query(f"avg({utilisation('Verifier')})", "Verifier"),
                Query(f"avg({utilisation('FastPath')})", "FastPath"),
            ),
            width=12,
        ),
        Panel(
            "Verifiers for each fast path",
            "In use, and advised: with so many, both pools would be busy alike under this mix of requests.",
            "none",
            (
                Query(ratio(_replicas("Verifier"), _replicas("FastPath")), "in use"),
                Query(ratio(_VERIFYING, _DRAFTING), "advised"),
            ),
            width=12,
        ),
    ),
)

OVERHEAD = Dashboard(
    "llm42-overhead",
    "LLM-42 / Overhead",
    "What determinism costs, and where.",
    (_CLIENTS, _VERIFIERS, _POOLS),
)
