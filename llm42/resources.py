"""What the engines need of a cluster, and whether it has that."""

from collections.abc import Mapping
from typing import Any

from llm42.config import Config, Pool


def actor_resources(pool: Pool, *, gpus: bool) -> dict[str, Any]:
    """What Ray reserves for a replica: a GPU for each rank where there are GPUs, else its threads' CPUs."""
    ranks = pool.ranks
    num_gpus = pool.num_gpus if pool.num_gpus is not None else (ranks if gpus else 0)
    default_cpus = 1 if num_gpus else pool.threads * ranks
    num_cpus = pool.num_cpus if pool.num_cpus is not None else default_cpus
    return {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": pool.resources}


def require_resources(config: Config, cluster: Mapping[str, float]) -> None:
    """``cluster`` is what Ray has found, by resource name.

    Raises ValueError if the engines need more than that: Serve would wait for it without an end.
    """
    gpus = cluster.get("GPU", 0) > 0
    wanted: dict[str, float] = {}
    for pool in (config.fast_path, config.verifier):
        needs = actor_resources(pool, gpus=gpus)
        for name, amount in {"CPU": needs["num_cpus"], "GPU": needs["num_gpus"], **needs["resources"]}.items():
            wanted[name] = wanted.get(name, 0) + amount * pool.replicas
    for name, amount in wanted.items():
        if amount > cluster.get(name, 0):
            raise ValueError(
                f"fast_path.replicas is {config.fast_path.replicas} and verifier.replicas is "
                f"{config.verifier.replicas}: together they need {amount:g} {name}, but Ray has found "
                f"{cluster.get(name, 0):g}. Use fewer replicas or threads, or set num_cpus / num_gpus of the pools"
            )
