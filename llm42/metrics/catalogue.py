"""All metrics, each declared beside what it measures; and the foreign ones that our dashboards show."""

from llm42.metrics import fastpath, router, verifier
from llm42.metrics.metric import Metric

BY_PART: dict[str, tuple[Metric, ...]] = {
    "Router": router.METRICS,
    "Verifier": verifier.METRICS,
    "FastPath": fastpath.METRICS,
}
"""By the deployment that reports them."""

CATALOGUE: tuple[Metric, ...] = tuple(metric for metrics in BY_PART.values() for metric in metrics)

FOREIGN = {
    "ray_serve_deployment_replica_healthy": "Ray Serve: 1 for each replica that answers health checks.",
    "ray_serve_deployment_replica_starts_total": "Ray Serve: replicas started; beyond the first ones, restarts.",
    "ray_serve_event_loop_scheduling_latency_ms_bucket": "Ray Serve: how late a replica's event loop wakes up.",
    "ray_serve_num_http_error_requests_total": "Ray Serve: HTTP answers with an error, by status.",
    "ray_vllm_num_requests_running": "vLLM: requests in the engine's batches; in a verifier, replays.",
    "ray_vllm_num_requests_waiting": "vLLM: requests that wait for the engine; in a verifier, for pages.",
    "ray_vllm_kv_cache_usage_perc": "vLLM: share of the KV memory in use, 0 to 1.",
    "ray_vllm_prefix_cache_queries_total": "vLLM: prompt tokens looked up in the prefix cache; in a verifier, in the "
    "window cache.",
    "ray_vllm_prefix_cache_hits_total": "vLLM: of which were found.",
    "ray_vllm_prompt_tokens_total": "vLLM: prompt tokens taken in (fast path).",
    "ray_vllm_generation_tokens_total": "vLLM: tokens generated (fast path).",
    "ray_vllm_num_preemptions_total": "vLLM: requests put back for want of KV memory (fast path).",
}
"""Metrics of Ray and vLLM on the same ports, by the name that Prometheus sees."""
