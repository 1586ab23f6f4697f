# make setup | run | test | lint. Every target is idempotent and works from a bare clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_CONFIG ?= configs/quickstart.yaml

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup run test lint
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
