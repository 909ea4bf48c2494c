"""The image holds what `make venv` installs, less the test tools. (It is not built here.)"""

import re
from fnmatch import fnmatch

import pytest

from tests.k8s.overlay import ROOT, render

MAKEFILE = (ROOT / "Makefile").read_text().replace("\\\n", " ")
CONTAINERFILE = (ROOT / "Containerfile").read_text().replace("\\\n", " ")


def installation(text: str, build: str) -> tuple[set[str], list[str], list[str]]:
    """Extras, exclude files and constraint files of the `uv pip install` for ``build``."""
    (command,) = re.findall(rf"uv pip install(?:(?!uv pip install).)*?\.\[{build},[^\]]*\]", text, re.DOTALL)
    (extras,) = re.findall(r"\.\[([^\]]*)\]", command)
    return set(extras.split(",")), re.findall(r"--excludes (\S+)", command), re.findall(r"--constraints (\S+)", command)


@pytest.mark.parametrize("build", ["gpu", "cpu"])
def test_it_installs_what_make_installs(build: str) -> None:
    extras, excludes, constraints = installation(MAKEFILE, build)
    assert "test" in extras
    assert installation(CONTAINERFILE, build) == (extras - {"test"}, excludes, constraints)


def test_no_gpu_is_looked_for_where_there_is_none() -> None:
    assert "--torch-backend=auto" in MAKEFILE
    assert "--torch-backend" not in re.findall(r"gpu\) (.*?);;", CONTAINERFILE, re.DOTALL)[0]


def test_what_is_copied_is_there_and_not_ignored() -> None:
    lines = [line for line in (ROOT / ".containerignore").read_text().splitlines() if line and line[0] != "#"]
    for command in re.findall(r"^COPY (.*)$", CONTAINERFILE, re.MULTILINE):
        *sources, _ = command.split()
        for source in sources:
            assert (ROOT / source).exists()
            assert [line for line in lines if fnmatch(source, line.removeprefix("!"))][-1] == f"!{source}"


def test_user_and_places_are_those_of_the_pods() -> None:
    pod = render("mixed").cluster["headGroupSpec"]["template"]["spec"]
    context = pod["securityContext"]
    assert re.findall(r"^USER (.*)$", CONTAINERFILE, re.MULTILINE) == [
        f"{context['runAsUser']}:{context['runAsGroup']}"
    ]
    for entry in pod["containers"][0]["env"]:
        if entry["name"] in ("HF_HOME", "LLM42_CACHE"):
            assert f"{entry['name']}={entry['value']}" in CONTAINERFILE


def test_the_python_is_one_that_the_package_takes() -> None:
    (version,) = re.findall(r"^FROM python:(3\.\d+)-slim$", CONTAINERFILE, re.MULTILINE)
    assert version in ("3.11", "3.12")
    assert 'requires-python = ">=3.11,<3.13"' in (ROOT / "pyproject.toml").read_text()
