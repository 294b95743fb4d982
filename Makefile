# Needs only python3 (3.11 or newer), node with npm, git and make; everything else is installed below this folder.
PYTHON ?= python3
BIN := .venv/bin
# More arguments for the command underneath: make test ARGS='-k cancel', make pin ARGS=--upgrade
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run test quick pythons chaos bench bench-smoke check fix gen pin clean

help: ## say what there is
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

run: .venv/.installed node_modules/.installed ## start OpenCode and the service in front of it
	@OPENCODE_COMMAND="$(CURDIR)/node_modules/.bin/opencode" $(BIN)/opencode-a2a up $(ARGS)

test: check node_modules/.installed ## lint, formatting, types, and all tests
	$(BIN)/python scripts/suite.py $(ARGS)

quick: .venv/.installed ## the tests that need neither OpenCode nor a running service (about a minute)
	$(BIN)/python scripts/suite.py --quick $(ARGS)

pythons: .venv/.installed ## the quick tests on every other Python that can be found here
	$(BIN)/python scripts/pythons.py $(ARGS)

chaos: .venv/.installed node_modules/.installed ## kill and cut things at random: make chaos ARGS='--kills 100'
	$(BIN)/python -m tests.chaos $(ARGS)

bench: .venv/.bench node_modules/.installed ## measure everything, and write docs/performance.md (minutes; on an idle machine)
	$(BIN)/python -m bench --write docs $(ARGS)

bench-smoke: .venv/.installed ## does a cost grow with what it must not grow with? (part of make test)
	$(BIN)/python -m bench --smoke

check: .venv/.installed ## lint, formatting, types
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy

fix: .venv/.installed ## format, and mend what can be mended automatically
	$(BIN)/ruff check --fix --exit-zero . && $(BIN)/ruff format .

gen: .venv/.installed ## write the generated files again (they are committed)
	$(BIN)/python scripts/gen.py $(ARGS)

pin: export UV_CUSTOM_COMPILE_COMMAND = make pin
pin: .venv/.installed ## compile requirements/*.txt again from pyproject.toml
	$(PIN) -o requirements/run.txt pyproject.toml
	$(PIN) -o requirements/dev.txt -c requirements/run.txt --group dev pyproject.toml
	$(PIN) -o requirements/bench.txt -c requirements/dev.txt --group bench pyproject.toml
# Extras are kept: pip looks for `coverage[toml]`, which a package asks for, among newer versions if only `coverage` is pinned.
PIN = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras $(ARGS)

clean: ## remove everything that was installed or built here
	rm -rf .venv .venv-3.* node_modules dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests bench -name __pycache__ -prune -exec rm -rf {} +

.venv/.installed: requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=…" if sys.version_info < (3, 11) else 0)'
	@echo "Installing Python packages into .venv (the first time takes about a minute) …"
	@$(PYTHON) -m venv .venv && $(PIP) --require-hashes -r requirements/dev.txt
	@$(PIP) --no-deps --no-build-isolation -e . && touch $@
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.venv/.bench: .venv/.installed requirements/bench.txt
	@$(PIP) --no-deps --require-hashes -r requirements/bench.txt && touch $@

node_modules/.installed: package.json package-lock.json
	@echo "Installing OpenCode and the JavaScript A2A clients into node_modules (some hundred MB) …"
	@npm ci --loglevel=error && touch $@
