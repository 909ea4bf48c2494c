"""A rendered RayService on a Ray of this machine: CPUs for GPUs and the test model, all else as it is."""

from copy import deepcopy

import httpx
import pytest

from tests.k8s.local_ray import local_ray, until
from tests.k8s.overlay import Object, render
from tests.ports import free_port

BUILT_S = 240.0
SERVING_S = 360.0
METRICS_S = 60.0
REQUEST_S = 120.0
WORKERS = ("fast-path", "verifier")


def on_cpus(config: Object, host: str) -> Object:
    """``config`` for two engines without a GPU, and one proxy on ``host``."""
    config = deepcopy(config)
    # Nodes of one machine cannot all have a proxy on one port.
    config["proxy_location"] = "HeadOnly"
    config["http_options"] = {"host": host, "port": free_port()}
    args = config["applications"][0]["args"]
    args |= {"model": "tiny", "max_model_len": 1024}
    for pool in ("fast_path", "verifier"):
        assert args[pool]["num_gpus"] > 0
        args[pool] |= {"num_gpus": 0, "engine": {"kv_cache_memory_bytes": 32 << 20}}
        args[pool]["autoscaling"]["min_replicas"] = 1
    return config


def ask(url: str) -> httpx.Response:
    body = {"model": "tiny", "prompt": [1, 2, 3, 4, 5], "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    return httpx.post(
        f"{url}/v1/completions",
        json={**body, "is_deterministic": True, "return_token_ids": True, "logprobs": 0},
        timeout=REQUEST_S,
        trust_env=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_serves_a_deterministic_request(tiny_path: str) -> None:
    overlay = render("autoscaled")
    with local_ray(overlay) as ray:
        head = ray.start_head()
        config = on_cpus(overlay.serve_config, head.host)
        # As KubeRay does it: once the head is there, whatever else is. The application waits for the workers.
        ray.deploy(config, until_status="DEPLOYING", timeout_s=BUILT_S)
        workers = [ray.start_worker(name, num_cpus=1) for name in WORKERS]
        ray.deploy(None, until_status="RUNNING", timeout_s=SERVING_S)
        port = config["http_options"]["port"]
        assert head.get(port, "/-/healthz").is_success

        url = f"http://{head.host}:{port}"
        first, second = ask(url), ask(url)
        assert first.headers["x-llm42-verified"] == "true", first.text
        assert len(first.json()["choices"][0]["token_ids"]) == 40
        assert first.json()["choices"] == second.json()["choices"]

        nodes = dict(zip(("headgroup", *WORKERS), (head, *workers), strict=True))

        def exported(name: str, metric: str) -> bool:
            return metric in nodes[name].get(nodes[name].metrics_port, "/metrics").text

        # Where the engines are is what their nodes' metrics say: the custom resources have kept the pools apart.
        passes = "ray_llm42_verify_pass_seconds_count"
        until(lambda: exported("verifier", passes), METRICS_S, "the verifier's node has no metrics of a verifier")
        assert not exported("headgroup", passes)
        assert not exported("fast-path", passes)

        with pytest.raises(AssertionError, match=r"[Aa]uthenticat"):
            ray.deploy(None, until_status="RUNNING", timeout_s=1, token="f" * 64)
