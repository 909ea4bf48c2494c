"""The overlays of k8s/ as `kubectl apply -k` would send them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENTS = ROOT / "deployments"
RENDER_S = 120.0
SERVES = {"single-gpu": "gpu-small", "mixed": "gpu-large", "autoscaled": "gpu-pools"}
"""What each overlay serves: a file in deployments/."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Overlay:
    name: str
    objects: tuple[Object, ...]

    def of_kind(self, kind: str) -> list[Object]:
        return [found for found in self.objects if found["kind"] == kind]

    @property
    def service(self) -> Object:
        (service,) = self.of_kind("RayService")
        return service

    @property
    def cluster(self) -> Object:
        """Specification of the RayCluster."""
        cluster: Object = self.service["spec"]["rayClusterConfig"]
        return cluster

    @property
    def serve_config(self) -> Object:
        config: Object = yaml.safe_load(self.service["spec"]["serveConfigV2"])
        return config

    @property
    def deployment(self) -> Object:
        """The file in deployments/ that it serves."""
        return load_deployment(SERVES[self.name])

    def groups(self) -> Iterator[tuple[str, Object]]:
        """Each group's name, and its specification."""
        yield "headgroup", self.cluster["headGroupSpec"]
        for group in self.cluster["workerGroupSpecs"]:
            yield group["groupName"], group


def load_deployment(name: str) -> Object:
    config: Object = yaml.safe_load((DEPLOYMENTS / f"{name}.yaml").read_text())
    return config


@cache
def _render(name: str) -> str:
    directory = str(ROOT / "k8s" / "overlays" / name)
    for tool, command in (("kustomize", "build"), ("kubectl", "kustomize")):
        if found := shutil.which(tool):
            # No cluster is asked anything.
            env = {**os.environ, "KUBECONFIG": os.devnull}
            run = subprocess.run([found, command, directory], env=env, capture_output=True, text=True, timeout=RENDER_S)
            assert run.returncode == 0, run.stderr
            return run.stdout
    pytest.skip("needs kustomize, or kubectl, which has it built in")


def render(name: str) -> Overlay:
    """Anew each time, for tests that change it."""
    return Overlay(name, tuple(yaml.safe_load_all(_render(name))))
