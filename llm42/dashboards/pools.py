"""Who is there, who is ill, and which pool is the bottleneck."""

from llm42.dashboards.colours import BAD, GOOD, WARNING
from llm42.dashboards.panel import Dashboard, Panel, Query, Row, stat
from llm42.dashboards.promql import each, engine, in_range, matching, quantiles, rate, ratio, utilisation, value
from llm42.metrics import router, verifier

_HEALTHY, _STARTS = "ray_serve_deployment_replica_healthy", "ray_serve_deployment_replica_starts_total"
_ERRORS = "ray_serve_num_http_error_requests_total"
_LAG = "ray_serve_event_loop_scheduling_latency_ms"
_FOUND = "ray_vllm_prefix_cache_hits_total", "ray_vllm_prefix_cache_queries_total"


def _engines(deployment: str) -> Panel:
    where = {"FastPath": "The prefix cache of the fast path makes rollbacks cheap.", "Verifier": "Replays, and pages."}
    return Panel(
        f"{deployment}: KV memory in use",
        f"Share of each engine's KV memory. {where[deployment]}",
        "percentunit",
        (Query(engine("ray_vllm_kv_cache_usage_perc", deployment, "max"), "{{ReplicaId}}"),),
    )


def _found(deployment: str, cache: str) -> Panel:
    hits, queries = (engine(name, deployment, counted=True) for name in _FOUND)
    return Panel(
        f"{deployment}: {cache} hits",
        f"Share of the tokens looked up in the {cache} that were found.",
        "percentunit",
        (Query(f"sum({hits}) / sum({queries})", deployment),),
    )


_REPLICAS = Row(
    "Replicas",
    (
        *(
            stat(
                f"{deployment} replicas",
                f"Healthy replicas of the {deployment} deployment.",
                "none",
                value(_HEALTHY, deployment=deployment),
                deployment,
                base=BAD,
                steps=((1, GOOD),),
            )
            for deployment in ("Router", "FastPath", "Verifier")
        ),
        stat(
            "Replays tried again",
            "In the time shown: verifiers that died, were busy, or failed.",
            "none",
            in_range(router.FAILOVERS),
            "calls",
            decimals=0,
            base=GOOD,
            steps=((1, WARNING),),
        ),
        stat(
            "Drafts lost",
            "In the time shown: drafters that died or fell silent under a deterministic request.",
            "none",
            in_range(router.DRAFTS_LOST),
            "drafts",
            decimals=0,
            base=GOOD,
            steps=((1, WARNING),),
        ),
        stat(
            "Start-up audit",
            "Time that a verifier's start-up audit takes, mean: a part of how long a replacement is away.",
            "s",
            ratio(
                f"sum({matching(verifier.AUDIT_SECONDS, '_sum')})",
                f"sum({matching(verifier.AUDIT_SECONDS, '_count')})",
            ),
            "audit",
            decimals=1,
        ),
        Panel(
            "Replicas",
            "Healthy ones, by deployment.",
            "none",
            (Query(value(_HEALTHY, "deployment"), "{{deployment}}"),),
            stack="normal",
        ),
        Panel(
            "Replicas started",
            "Since Serve's controller began; steps up are restarts, deploys, or growth.",
            "none",
            (Query(f"sum by (deployment) ({matching(_STARTS)})", "{{deployment}}"),),
        ),
        Panel(
            "Replays tried again, by reason",
            "died: no answer in time or no replica; busy: its queue was full; failed: the pass failed; fingerprint: a "
            "verifier of another pool.",
            "ops",
            each(router.FAILOVERS, "reason", rate),
            stack="normal",
        ),
        Panel(
            "HTTP errors",
            "Answers with an error, by status, as Serve's proxies see them: 400 refused by name, 401 without a right "
            "API key, 429 over quota, 503 overloaded or unverifiable.",
            "reqps",
            (Query(f"sum by (error_code) (rate({matching(_ERRORS)}[$__rate_interval]))", "{{error_code}}"),),
            stack="normal",
        ),
        Panel(
            "Requests by outcome",
            "Both modes.",
            "reqps",
            each(router.REQUESTS, "outcome", rate),
            stack="normal",
        ),
        Panel(
            "Event loop lag of the routers",
            "How late their event loops wake up. Steadily above some 50 ms: add routers.",
            "ms",
            quantiles(_LAG, (0.5, 0.99), deployment="Router"),
        ),
        Panel(
            "Refused over quota",
            "Deterministic requests of API keys that had all their answers under way, or had used up their tokens.",
            "reqps",
            each(router.OVER_QUOTA, "limit", rate),
            stack="normal",
        ),
    ),
)

_FAST_PATH = Row(
    "Fast path",
    (
        Panel(
            "FastPath: requests",
            "In the engines' batches, and waiting for them: drafts and ordinary requests.",
            "none",
            (
                Query(f"sum({engine('ray_vllm_num_requests_running', 'FastPath')})", "running"),
                Query(f"sum({engine('ray_vllm_num_requests_waiting', 'FastPath')})", "waiting"),
            ),
            stack="normal",
        ),
        Panel(
            "FastPath: tokens",
            "Tokens a second: prompts taken in (after a rollback, mostly from the prefix cache), and tokens generated.",
            "ops",
            (
                Query(f"sum({engine('ray_vllm_prompt_tokens_total', 'FastPath', counted=True)})", "prompt"),
                Query(f"sum({engine('ray_vllm_generation_tokens_total', 'FastPath', counted=True)})", "generation"),
            ),
        ),
        Panel(
            "FastPath: utilisation",
            "Share of the time spent in engine steps, by replica.",
            "percentunit",
            (Query(utilisation("FastPath"), "{{replica}}"),),
        ),
        _engines("FastPath"),
        _found("FastPath", "prefix cache"),
        Panel(
            "FastPath: preemptions",
            "Requests put back for want of KV memory, so far. If it climbs: more memory, or fewer requests.",
            "none",
            (Query(f"sum({engine('ray_vllm_num_preemptions_total', 'FastPath')})", "FastPath"),),
        ),
    ),
)

_VERIFIERS = Row(
    "Verifiers",
    (
        Panel(
            "Verifier: utilisation",
            "Share of the time spent in replay passes, by replica. One that does less than the others may be ill.",
            "percentunit",
            (Query(utilisation("Verifier"), "{{replica}}"),),
        ),
        _engines("Verifier"),
        Panel(
            "Verifier: pages",
            "Pages of KV memory: held by replays, or free (published windows stay there until the page is needed).",
            "none",
            each(verifier.PAGES, "state", value),
            stack="normal",
        ),
        _found("Verifier", "window cache"),
        Panel(
            "Window cache",
            "Pages a second: found, computed, and taken from the cache for something else. Steady evictions: more "
            "memory, or more verifiers.",
            "ops",
            each(verifier.PAGE_EVENTS, "event", rate),
        ),
        Panel(
            "Windows computed anew elsewhere",
            "Sequences a second that moved to another verifier, which has to compute their windows again.",
            "ops",
            (Query(rate(router.REBUILDS), "rebuild"),),
        ),
    ),
)

POOLS = Dashboard(
    "llm42-pools",
    "LLM-42 / Pools",
    "Who is there, who is ill, and which pool is the bottleneck.",
    (_REPLICAS, _FAST_PATH, _VERIFIERS),
)
