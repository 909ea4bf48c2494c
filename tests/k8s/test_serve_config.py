"""What the overlays serve is what deployments/ says, and Serve and LLM-42 take every word of it."""

from copy import deepcopy
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from llm42.app import build
from llm42.config import read_config
from llm42.resources import require_resources
from tests.k8s.overlay import DEPLOYMENTS, Object, Overlay, load_deployment

FILES = sorted(path.stem for path in DEPLOYMENTS.glob("*.yaml"))
GPU_FILES = [name for name in FILES if name.startswith("gpu-")]


def require_known_keys(given: Any, kept: Any, where: str = "") -> None:
    """Serve's schema drops what it does not know: what it has ``kept`` must be all that was ``given``."""
    if isinstance(given, dict):
        if unknown := set(given) - set(kept):
            raise ValueError(f"Serve does not know {', '.join(f'{where}{name}' for name in sorted(unknown))}")
        for name, value in given.items():
            require_known_keys(value, kept[name], f"{where}{name}.")
    elif isinstance(given, list):
        for index, (value, after) in enumerate(zip(given, kept, strict=True)):
            require_known_keys(value, after, f"{where}{index}.")


def require_serve_config(config: Object) -> None:
    """Raises ValueError (or its subclass of pydantic) if Serve, or LLM-42 in ``args``, would not take it all."""
    require_known_keys(config, ServeDeploySchema.model_validate(config).model_dump(mode="json", exclude_unset=True))
    for application in config["applications"]:
        assert application["import_path"] == f"{build.__module__}:{build.__name__}"
        read_config(application["args"])


@pytest.mark.parametrize("name", FILES)
def test_deployments_are_taken(name: str) -> None:
    config = load_deployment(name)
    require_serve_config(config)
    # Run by hand, nothing listens but on the loopback interface.
    assert config["http_options"]["host"] == "127.0.0.1"


@pytest.mark.parametrize("name", GPU_FILES)
def test_examples_for_gpus_say_so_and_that_they_were_not_run(name: str) -> None:
    assert "Not run on a GPU" in " ".join((DEPLOYMENTS / f"{name}.yaml").read_text().split("proxy_location")[0].split())
    config = read_config(load_deployment(name)["applications"][0]["args"])
    for pool in (config.fast_path, config.verifier):
        assert pool.num_gpus is not None
        assert pool.num_gpus in (0.5, pool.ranks)
    # Before any node has joined.
    require_resources(config, {}, growing=True)


def test_overlays_serve_what_deployments_say(overlay: Overlay) -> None:
    require_serve_config(overlay.serve_config)
    assert overlay.serve_config["applications"] == overlay.deployment["applications"]
    # In a pod the network policy says who may come, and each pod with a replica takes requests.
    assert {k: v for k, v in overlay.serve_config.items() if k != "applications"} == {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": 8000},
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("http_option",), {}),
        (("http_options", "hosts"), "0.0.0.0"),
        (("applications", 0, "deployment"), []),
        (("applications", 0, "deployments"), [{"name": "Verifier", "num_replica": 2}]),
        (("applications", 0, "deployments"), [{"name": "Verifier", "num_replicas": "many"}]),
        (("applications", 0, "args", "windowsize"), 32),
        (("applications", 0, "args", "verifier", "replicas"), 2),
        (("applications", 0, "args", "verifier", "autoscaling", "max_replicas"), 1),
        (("applications", 0, "args", "verifier", "autoscaling", "target"), 1),
    ],
)
def test_planted_errors_are_found(path: tuple[str | int, ...], value: Any) -> None:
    config = deepcopy(load_deployment("gpu-pools"))
    *way, last = path
    place: Any = config
    for step in way:
        place = place[step]
    place[last] = value
    with pytest.raises(ValueError):  # noqa: PT011 - the schema's own words, or ours
        require_serve_config(config)


def test_a_difference_from_deployments_would_be_seen() -> None:
    changed = yaml.safe_load((DEPLOYMENTS / "gpu-pools.yaml").read_text().replace("replicas: 2", "replicas: 3"))
    assert changed["applications"] != load_deployment("gpu-pools")["applications"]
