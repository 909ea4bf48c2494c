"""``llm42 check`` as a user runs it: content with deterministic traffic, and not with ordinary."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster

RUN_S = 300
SIZE = ("--prompts", "10", "--concurrency", "8", "--trials", "2", "--max-tokens", "64")

pytestmark = pytest.mark.timeout(RUN_S + 60)


def check(cluster: Cluster, *arguments: str) -> tuple[int, dict[str, Any]]:
    llm42 = Path(sys.executable).with_name("llm42")
    command = [llm42, "check", "--base-url", cluster.url, "--json", *SIZE, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S, env={**os.environ, "NO_PROXY": "127.0.0.1"}
    )
    print(done.stdout, done.stderr)
    return done.returncode, json.loads(done.stdout)


def test_check_passes_on_deterministic_traffic(cluster: Cluster) -> None:
    status, found = check(cluster)
    assert status == 0
    assert (found["completions"], found["unique_max"], found["diverged_prompts"]) == (30, 1, 0)
    assert found["logprobs_compared"]


def test_check_fails_on_ordinary_traffic(cluster: Cluster) -> None:
    """The negative control: the check can see what it looks for."""
    status, found = check(cluster, "--ordinary")
    assert status == 1
    assert found["unique_max"] > 1
    assert found["first_divergence"] is not None
