# Every target installs what it needs, and no more, into one virtual environment. They need Python
# 3.11 or newer; `make PYTHON=...` names another interpreter. The pipeline also needs Java.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
# What is installed: the node with its Postgres, the same with the demo or the pipeline, the gateway,
# what builds the documentation, everything else.
RUN := $(VENV)/.run
DEMO := $(VENV)/.demo
GATEWAY := $(VENV)/.gateway
PIPELINE := $(VENV)/.pipeline
DOCS := $(VENV)/.docs
DEV := $(VENV)/.dev
# The schemas that `make proto-check` compares with: those of the release that the name says.
BASELINE := tests/vectors/proto-0.1.0.binpb
# All that needs no further programs, the longest first: what only computes fills the gaps at the end.
# MORE: what is tried in the same run, such as tests/browser and tests/deploy where their programs are.
# LONG=1: with the tests that are marked as long.
# FOREIGN: clients in other languages, whose tools build them; left out unless MORE names them.
FOREIGN := tests/integration/clients tests/integration/javascript tests/integration/gateway/test_javascript.py
TESTS := tests/faults tests/install tests/integration tests/calls tests/embedded \
	tests/ports tests/sim tests/unit tests/interop tests/layering
# Ends what an interrupted run leaves behind.
PYTEST := $(BIN)/python tests/support/reaper.py $(BIN)/python -m pytest
IN_PROCESSES := --numprocesses auto --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help run demo gateway pipeline test test-long check-browser check-azure sim bench soak fuzz fuzz-kernel hostile lint ways ratchet report format types proto \
	proto-check docs check-dashboard check-rules check-deploy audit-dependencies release-check dist lock clean

help: ## show this list
	@echo "usage: make TARGET [ARGS='...']"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s  %s\n", $$1, $$2 }' Makefile

run: $(RUN) ## run a node with its own Postgres; ARGS are options of `storenode run`
	@exec $(BIN)/storenode run $(ARGS)

demo: $(DEMO) ## show the whole system at work for a minute; ARGS='--help' lists what can be varied
	@exec $(BIN)/storenode demo $(ARGS)

gateway: $(GATEWAY) ## serve a node to Waku clients; ARGS are options of `storenode gateway`
	@exec $(BIN)/storenode gateway $(ARGS)

pipeline: $(PIPELINE) ## run a job of the data pipeline; ARGS are those of `storenode pipeline`
	@exec $(BIN)/storenode pipeline $(ARGS)

test: $(if $(ARGS),,java) $(DEV) ## run the tests without the long ones; ARGS are arguments of pytest, MORE further folders
ifdef ARGS
	@exec $(PYTEST) $(ARGS)
else
	@$(PYTEST) $(IN_PROCESSES) $(if $(LONG),,-m 'not long') --processor-time tools/test_time.toml $(TIME) \
		$(addprefix --ignore=,$(filter-out $(MORE),$(FOREIGN))) $(MORE) $(TESTS); code=$$?; \
	$(if $(LONG),,echo 'The long tests were left out: `make test-long` runs them.';) exit $$code
endif

test-long: java $(DEV) ## run the long tests, which `make test` leaves out
	@exec $(PYTEST) $(IN_PROCESSES) -m long $(TESTS)

.PHONY: java
java:
	@sh tools/require_java.sh

check-browser: $(DEV) $(DOCS) ## try the pages of a node and the site in the system's Chromium, which must be installed
	@exec $(PYTEST) tests/browser $(ARGS)

sim: $(DEV) ## simulate nodes, or SDS groups, under faults; ARGS='--help' lists what can be asked
	@exec $(BIN)/python -m sim $(ARGS)

bench: $(DEV) ## run the benchmarks; ARGS are names of some and --messages N
	@exec $(BIN)/python -m bench $(ARGS)

soak: $(DEV) ## three nodes under fire for twenty minutes; ARGS='--help' lists what can be asked
	@exec $(BIN)/python -m chaos.soak $(ARGS)

fuzz-kernel: $(DEV) ## mutate payloads against the kernel, built with sanitizers; ARGS are those of pytest
	@exec sh tools/fuzz_kernel.sh $(BIN)/python $(or $(ARGS),tests/unit/reconcile)

fuzz: $(DEV) ## send broken requests to every method of a node; ARGS='--help'
	@exec $(BIN)/python -m chaos.attacks --attack broken_requests $(ARGS)

hostile: $(DEV) ## attack a node, and say what it costs; ARGS='--help' lists what can be asked
	@exec $(BIN)/python -m chaos.attacks $(ARGS)

lint: $(DEV) ## check format, names, docstrings, imports between rooms, and the size of each room
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/check_style.py
	$(BIN)/python tools/check_size.py
	$(BIN)/lint-imports --no-logo --no-cache

ways: $(DEV) ## check what a call costs a node in functions, files, dataclasses and statements; ARGS='--list'
	@exec $(BIN)/python -m bench.ways $(ARGS)

ratchet: $(DEV) ## lower the ceilings of size and ways to what is measured now
	$(BIN)/python tools/check_size.py --update
	$(BIN)/python -m bench.ways --update

report: $(DEV) ## print the lines, files, public classes and target of each room
	@exec $(BIN)/python tools/check_size.py --report

format: $(DEV) ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/buf format --write

types: $(DEV) ## check types, strictly
	$(BIN)/mypy

proto: $(DEV) ## generate storenode/wire/ from proto/
	$(BIN)/python tools/generate_wire.py

proto-check: $(DEV) ## check storenode/wire/, the style of proto/, and its compatibility with 0.1.0
	$(BIN)/python tools/generate_wire.py --check
	$(BIN)/buf format --diff --exit-code
	$(BIN)/buf lint
	$(BIN)/buf breaking --against $(BASELINE)

# Not --quiet: it would also hide the warnings from --strict.
docs: $(DOCS) ## build the documentation's site into build/site, and check its prose; a broken link is an error
	@$(BIN)/python tools/check_prose.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

check-azure: $(DEV) ## try archives on Azurite, which npm installs below build/
	npm install --prefix build/azurite --no-save --no-audit --no-fund --ignore-scripts azurite@3.35.0
	AZURITE=$(CURDIR)/build/azurite/node_modules/.bin/azurite-blob $(MAKE) test ARGS=tests/integration/pipeline/test_object_store.py

check-dashboard: $(DEV) ## check that the dashboard of deploy/ is the generated one
	@$(BIN)/python tools/generate_dashboard.py --check

check-rules: $(DEV) ## check that the alerts of deploy/ are those of the problems
	@$(BIN)/python tools/generate_rules.py --check

check-deploy: check-dashboard check-rules ## validate deploy/ with docker-compose, promtool, kubectl, systemd-analyze and psql
	@$(PYTEST) tests/deploy --numprocesses auto $(ARGS)

audit-dependencies: $(DEV) ## ask for known vulnerabilities of dependencies; code 3: not known
	@$(BIN)/python tools/audit_dependencies.py

release-check: ## check everything that a release must pass, long tests included
	@exec bash .ci/run --long

dist: $(DEV) ## build wheels and source distributions of both parts into dist/
	$(BIN)/python tools/build_dist.py $(ARGS)

lock: $(DEV) ## pin all dependencies with hashes; ARGS=--upgrade takes newer versions
	$(BIN)/python tools/lock.py $(ARGS)

clean: ## remove the virtual environment, caches and build products; data stays
	rm -rf $(VENV) build dist packaging/node/build *.egg-info packaging/node/*.egg-info
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f reconcile/_kernel*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.%: requirements/%.lock pyproject.toml packaging/node/pyproject.toml packaging/node/setup.py \
		tools/make_venv.sh $(wildcard reconcile/native/*)
	@PYTHON='$(PYTHON)' sh tools/make_venv.sh $(VENV) $*
	@touch $@
