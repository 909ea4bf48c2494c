"""What the engines need of a cluster, and whether it has that, or may come to."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llm42.config import Config, Pool

NODE_GROUP = "ray.io/node-group"
"""Ray's label of a node that was started as one of a group, by KubeRay or Ray's cluster launcher: they start others."""

logger = logging.getLogger("ray.serve")


def actor_resources(pool: Pool, *, gpus: bool) -> dict[str, Any]:
    """What Ray reserves for a replica: a GPU for each rank where there are GPUs, else its threads' CPUs."""
    ranks = pool.ranks
    num_gpus = pool.num_gpus if pool.num_gpus is not None else (ranks if gpus else 0)
    default_cpus = 1 if num_gpus else pool.threads * ranks
    num_cpus = pool.num_cpus if pool.num_cpus is not None else default_cpus
    return {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": pool.resources}


def may_grow(nodes: Iterable[Mapping[str, Any]]) -> bool:
    """Whether nodes may join by themselves: pods that still start, or those of an autoscaler.

    ``nodes`` as in ``ray.nodes()``.
    """
    return any(node["Alive"] and NODE_GROUP in node["Labels"] for node in nodes)


def require_resources(config: Config, cluster: Mapping[str, float], *, growing: bool = False) -> None:
    """``cluster`` is what Ray has found, by resource name; ``growing``: more may come.

    Raises ValueError if the engines that there always are need more than that and no more may come: Serve would wait
    for it without an end. No room for the most that there may be is a warning. On a cluster that may grow neither is
    refused; but whether the engines compute on GPUs must be said there, as those that have joined so far do not tell.
    """
    pools = {"fast_path": config.fast_path, "verifier": config.verifier}
    if growing and (silent := [f"{name}.num_gpus" for name, pool in pools.items() if pool.num_gpus is None]):
        raise ValueError(
            f"{' and '.join(silent)} must be set on a cluster whose nodes come later: without it an engine computes on "
            "a GPU only if one has joined by now. 0 means CPUs"
        )
    gpus = cluster.get("GPU", 0) > 0
    for shortage in _shortages(pools, cluster, gpus, most=False):
        if not growing:
            raise ValueError(f"{shortage}. Use fewer replicas or threads, or set num_cpus / num_gpus of the pools")
        logger.warning("%s. Waiting for nodes to join", shortage)
    if not growing:
        for shortage in _shortages(pools, cluster, gpus, most=True):
            logger.warning("%s. The pools cannot grow so far", shortage)


def _shortages(pools: Mapping[str, Pool], cluster: Mapping[str, float], gpus: bool, *, most: bool) -> Iterator[str]:
    """Of the engines that there always are, or of the ``most`` that there may be."""
    counts: dict[str, int] = {}
    wanted: dict[str, float] = {}
    for part, pool in pools.items():
        count = pool.most if most else pool.least
        bound = "max_replicas" if most else "min_replicas"
        counts[f"{part}.replicas" if pool.autoscaling is None else f"{part}.autoscaling.{bound}"] = count
        needs = actor_resources(pool, gpus=gpus)
        for name, amount in {"CPU": needs["num_cpus"], "GPU": needs["num_gpus"], **needs["resources"]}.items():
            wanted[name] = wanted.get(name, 0) + amount * count
    asked = " and ".join(f"{name} is {count}" for name, count in counts.items())
    for name, amount in wanted.items():
        if amount > cluster.get(name, 0):
            yield f"{asked}: together they need {amount:g} {name}, but Ray has found {cluster.get(name, 0):g}"
