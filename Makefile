# What people and CI run. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
PACKAGES := stable control runtimes protocol
CODE := $(PACKAGES) tests
# Most tests wait for processes: more of them at once than there are cores, and none idle. The timeout is for what hangs.
PARALLEL := --numprocesses 5 --dist worksteal --timeout 300
# pyright must find this interpreter first.
export PATH := $(CURDIR)/$(BIN):$(PATH)

# The real agents to drive: columns of docs/reference/backends.md, opencode or codex for all of theirs, or `all`.
AGENTS ?= opencode,codex
# Where their results are kept; the reference is made of those in the repository.
RESULTS ?= tests/agents/results

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-agents agents format lint type cover check bench chaos load picture site dist check-installs clean

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "avenor needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip
	@touch $@

$(VENV)/.setup: pyproject.toml $(VENV)/.made
	$(PIP) install --editable .
	@# Commands must start fast also where Python may not write its bytecode by itself.
	$(BIN)/python -m compileall -q $(PACKAGES)
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.setup
	$(PIP) install --group dev
	@touch $@

setup: $(VENV)/.setup  ## Make .venv with the avenor command in it
	@echo "ready: $(BIN)/avenor --help"

demo: setup  ## Supervise three rehearsed agents, live, and check what was seen
	@$(BIN)/python docs/demo.py

test: $(VENV)/.dev  ## All tests that need no agent program
	$(BIN)/pytest $(PARALLEL)

agents: $(VENV)/.dev  ## Install the real agents that test-agents drives (npm)
	$(BIN)/python -m tests.agents.catalog '$(AGENTS)'

test-agents: agents  ## Drive real agents (AGENTS=opencode,codex) with a stand-in model on loopback
	@# A failed check belongs into the reference too.
	status=0; AVENOR_TEST_AGENTS='$(AGENTS)' AVENOR_AGENT_RESULTS='$(RESULTS)' $(BIN)/pytest -m agents tests/agents \
	  || status=$$?; $(BIN)/python docs/backends.py && exit $$status

format: $(VENV)/.dev  ## Format the code
	$(BIN)/ruff format $(CODE) docs
	$(BIN)/ruff check --fix $(CODE) docs

lint: $(VENV)/.dev
	$(BIN)/ruff format --check $(CODE) docs
	$(BIN)/ruff check $(CODE) docs
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

type: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/pyright

cover: $(VENV)/.dev  ## Tests with branch coverage, and its limits
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(PARALLEL)
	@# A process that a test has killed may leave half a file, which is told and left out.
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --include='protocol/*' --fail-under=100
	$(BIN)/coverage report --omit='protocol/*' --fail-under=95

check: lint type cover  ## What must be green before a commit

bench: $(VENV)/.dev  ## Speed and memory, side by side with other supervisors
	$(PIP) install --group bench
	$(BIN)/python -m tests.bench

chaos: $(VENV)/.dev  ## Kill everything at any moment, and check what is left; three minutes (SEED=N)
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED))

load: $(VENV)/.dev  ## Hundreds of runtimes, and nothing left to work with; some six minutes
	$(BIN)/python -m tests.load

picture: setup  ## Draw the README's moving picture from a real run of the demo
	$(BIN)/python docs/picture.py

site: $(VENV)/.dev  ## Build the documentation as a site, into dist/site; a warning is an error
	$(PIP) install --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f .ci/mkdocs.yml

dist: $(VENV)/.dev  ## Build the wheel, and of it the one-file executable for this Python
	$(PIP) install --group dist
	rm -f dist/avenor-*.whl dist/avenor.pyz
	$(BIN)/python -m hatchling build -t wheel
	$(BIN)/shiv -q --compressed -c avenor -p '/usr/bin/env python3' -o dist/avenor.pyz "$$(echo dist/avenor-*.whl)[mcp]"

check-installs: dist  ## Install what dist builds with pipx, with uv and as one file, and use it
	.ci/check-installs

clean:  ## Remove what was built
	rm -rf $(VENV) dist .agents .coverage* .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
