# make setup | run | test | lint. Every target is idempotent and works from a bare clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_CONFIG ?= configs/quickstart.yaml

export PIP_DISABLE_PIP_VERSION_CHECK := 1

VLLM_VENV ?= .venv-vllm

.PHONY: setup run test lint test-vllm
.DEFAULT_GOAL := run

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "cohelix needs Python 3.11 or newer; got $$($(PYTHON) --version 2>&1). Set PYTHON=/path/to/python3.11 and repeat." >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --progress-bar off -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $(STAMP)

run: setup
	$(BIN)/cohelix run $(RUN_CONFIG)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -q

# The real vLLM, on CPU, in an environment of its own; minutes long. VLLM_VENV=/path takes one that is there.
test-vllm: setup $(VLLM_VENV)/.cohelix-installed
	VLLM_VENV=$(abspath $(VLLM_VENV)) $(BIN)/python -m pytest -q -m slow \
	  tests/contract/test_rollout_engine.py tests/policy/test_real_vllm.py

$(VLLM_VENV)/.cohelix-installed: requirements-vllm.lock
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("vllm") is None)' || \
	  $(VLLM_VENV)/bin/python -m pip install --quiet --progress-bar off --no-deps -r requirements-vllm.lock
	touch $@
