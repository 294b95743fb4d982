# Needs only python3 (3.11 or newer), node with npm, git and make; everything else is installed below this folder.
PYTHON ?= python3
BIN := .venv/bin
CONSOLE := src/opencode_a2a/console
# More arguments for the command underneath: make test ARGS='-k cancel', make pin ARGS=--upgrade
ARGS ?=

# Python and npm packages are installed at the same time.
ifeq ($(words $(MAKECMDGOALS)),1)
MAKEFLAGS += -j2
endif

.DEFAULT_GOAL := help
.PHONY: help run test quick pythons chaos chaos-cluster interop deploy-test bench bench-smoke check fix gen pin clean console console-test console-pictures

help: ## say what there is
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

run: .venv/.run node_modules/.run $(CONSOLE)/index.html ## start OpenCode and the service in front of it: make run DIR=path/to/project
	@OPENCODE_COMMAND="$${OPENCODE_COMMAND:-$(CURDIR)/node_modules/.bin/opencode}" $(BIN)/opencode-a2a up $(ARGS) $(if $(DIR),"$(DIR)")

console: $(CONSOLE)/index.html ## build the web console into the package (only when its sources have changed)

console-test: console/node_modules/.dev ## types and unit tests of the console
	cd console && npm run --silent check && npm run --silent test

console-pictures: console .venv/.dev node_modules/.dev console/node_modules/.dev ## take the pictures of docs/console.md (Chromium)
	CONSOLE_PICTURES=docs/console $(BIN)/python -m pytest -q -p no:schemathesis tests/console/test_pictures.py

# The tests in a browser need the built console; where there is no browser they are skipped.
BROWSER := $(firstword $(foreach name,chromium chromium-browser google-chrome,$(shell command -v $(name) 2>/dev/null)))
test: .venv/.dev node_modules/.dev $(if $(BROWSER),$(CONSOLE)/index.html console/node_modules/.dev) ## lint, formatting, types, and all tests
	$(BIN)/python scripts/suite.py $(ARGS)

quick: .venv/.dev ## the tests that need neither OpenCode nor a running service (one to two minutes)
	$(BIN)/python scripts/suite.py --quick $(ARGS)

pythons: .venv/.dev ## the quick tests on every other Python that can be found here
	$(BIN)/python scripts/pythons.py $(ARGS)

chaos: .venv/.dev node_modules/.dev ## kill and cut things at random: make chaos ARGS='--kills 100'
	$(BIN)/python -m tests.chaos $(ARGS)

chaos-cluster: .venv/.dev ## three nodes on one PostgreSQL, killed, paused and cut off: make chaos-cluster ARGS='--faults 100'
	$(BIN)/python -m tests.chaos.cluster $(ARGS)

interop: .venv/.dev node_modules/.dev ## A2A clients written elsewhere, and other versions of OpenCode (installs GBs; tens of minutes)
	$(BIN)/python -m tests.interop $(ARGS)

deploy-test: .venv/.dev node_modules/.dev ## the deployment on a real systemd in a container (root; Debian's systemd-container, mmdebstrap)
	$(BIN)/python -m tests.machine $(ARGS)

bench: .venv/.bench node_modules/.dev ## measure everything, and write docs/performance.md (minutes; on an idle machine)
	$(BIN)/python -m bench --write docs $(ARGS)

bench-smoke: .venv/.dev ## does a cost grow with what it must not grow with? (part of make test)
	$(BIN)/python -m bench --smoke

check: .venv/.dev ## lint, formatting, types
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy

fix: .venv/.dev ## format, and mend what can be mended automatically
	$(BIN)/ruff check --fix --exit-zero . && $(BIN)/ruff format .

gen: .venv/.dev ## write the generated files again (they are committed)
	$(BIN)/python scripts/gen.py $(ARGS)

pin: export UV_CUSTOM_COMPILE_COMMAND = make pin
pin: .venv/.dev ## compile requirements/*.txt again from pyproject.toml
	$(PIN) -o requirements/run.txt pyproject.toml
	$(PIN) -o requirements/build.txt -c requirements/run.txt --group build
	$(PIN) -o requirements/uv.txt --group uv
	$(PIN) -o requirements/dev.txt -c requirements/run.txt -c requirements/build.txt -c requirements/uv.txt --group dev pyproject.toml
	$(PIN) -o requirements/postgres.txt -c requirements/dev.txt --extra postgres pyproject.toml
	$(PIN) -o requirements/bench.txt -c requirements/dev.txt --group bench pyproject.toml
# Extras are kept: pip looks for `coverage[toml]`, which a package asks for, among newer versions if only `coverage` is pinned.
PIN = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras $(ARGS)

clean: ## remove everything that was installed or built here
	rm -rf .venv .venv-3.* .interop node_modules tests/opencode2/node_modules console/node_modules $(CONSOLE) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests bench -name __pycache__ -prune -exec rm -rf {} +

# What is installed, and for what: .run is what running needs, .dev what tests and checks need besides. Packages must
# have the hashes in requirements/ and package-lock.json. uv is ten times as fast as pip, so pip installs it first where
# there is none; where uv cannot reach packages, because only pip is told where they are, pip installs them all.
UV := $(shell command -v uv 2>/dev/null)
ifneq ($(UV),)
VENV = $(UV) venv --quiet --allow-existing --python $(PYTHON) .venv
PIP = $(UV) pip install --python .venv
else
VENV = $(PYTHON) -m venv .venv && $(ONLY_PIP) --quiet --require-hashes --only-binary :all: -r requirements/uv.txt
PIP = $(BIN)/uv pip install --python .venv
ONLY_PIP = $(BIN)/python -m pip install --disable-pip-version-check --no-compile
endif
PROGRESS = $(PYTHON) src/opencode_a2a/cli/progress.py
install = $(PROGRESS) $(1) .venv $(PIP) $(2) $(if $(ONLY_PIP),|| $(PROGRESS) $(1) .venv $(ONLY_PIP) $(2))

.venv/.run: requirements/run.txt requirements/build.txt requirements/uv.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=…" if sys.version_info < (3, 11) else 0)'
	@echo "Installing Python packages into .venv (about 90 MB) …"
	@$(VENV)
	@$(call install,"Python packages",--require-hashes --only-binary :all: -r requirements/run.txt -r requirements/build.txt)
	@$(PIP) --quiet --no-deps --no-build-isolation -e . && touch $@

.venv/.dev: .venv/.run requirements/dev.txt
	@$(call install,"Python packages for tests and checks",--require-hashes -r requirements/dev.txt)
	@touch $@

.venv/.bench: .venv/.dev requirements/bench.txt
	@$(PIP) --quiet --no-deps --require-hashes -r requirements/bench.txt && touch $@

node_modules/.run: package.json package-lock.json
	@echo "Installing OpenCode into node_modules (some hundred MB) …"
	@$(PROGRESS) "OpenCode" node_modules npm ci --omit=dev --loglevel=error && touch $@

# For the tests, where npm has a program of it; elsewhere those that need it are skipped.
OPENCODE2 := $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -))

# `npm install` adds to what is there; `npm ci` would begin again.
node_modules/.dev: node_modules/.run tests/opencode2/package-lock.json
	@$(PROGRESS) "JavaScript A2A clients" node_modules npm install --no-save --loglevel=error
	@$(if $(OPENCODE2),$(PROGRESS) "OpenCode 2" tests/opencode2 npm ci --prefix tests/opencode2 --loglevel=error)
	@touch $@

CONSOLE_PACKAGES := console/package.json console/package-lock.json
CONSOLE_SOURCES := $(shell find console/src console/public -type f 2>/dev/null) console/index.html console/vite.config.ts

# Whoever has the built console needs nothing else: what builds it is installed only when it is built.
$(CONSOLE)/index.html: $(CONSOLE_PACKAGES) $(CONSOLE_SOURCES)
	@[ console/node_modules/.run -nt console/package-lock.json ] \
		|| { $(PROGRESS) "what builds the console" console/node_modules npm ci --prefix console --omit=dev --loglevel=error && touch console/node_modules/.run; }
	@cd console && npx --no-install vite build --logLevel warn && touch ../$@

# After the build, which must not see packages change beneath it. It has also what builds the console.
console/node_modules/.dev: $(CONSOLE_PACKAGES) | $(CONSOLE)/index.html
	@$(PROGRESS) "what tests the console" console/node_modules npm install --prefix console --no-save --loglevel=error && touch console/node_modules/.run $@
