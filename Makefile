# Every target makes the virtual environment that it needs; none needs anything but
# Python 3.11 or newer. `make PYTHON=...` names another interpreter.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK := requirements.lock
# What only computes runs on all cores; of what starts servers and nodes, two run at a time.
PURE_TESTS := tests/unit tests/sim tests/interop tests/layering
PROCESS_TESTS := tests/embedded tests/faults tests/integration

.DEFAULT_GOAL := help
.PHONY: help run demo test check-browser sim bench soak lint format types proto proto-check \
	check-deploy audit-dependencies lock clean

help: ## show this list
	@echo "usage: make TARGET [ARGS='...']"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s  %s\n", $$1, $$2 }' Makefile

run: $(STAMP) ## run a node with its own Postgres; ARGS are options of `storenode run`
	@exec $(BIN)/storenode run $(ARGS)

demo: $(STAMP) ## show the whole system at work for a minute; ARGS='--help' lists what can be varied
	@exec $(BIN)/storenode demo $(ARGS)

test: $(STAMP) ## run the tests; ARGS are arguments of pytest
ifdef ARGS
	@exec $(BIN)/python -m pytest $(ARGS)
else
	@$(BIN)/python -m pytest --numprocesses auto --dist loadfile $(PURE_TESTS)
	@$(BIN)/python tools/run_server_tests.py --numprocesses 2 --dist loadfile --no-loadscope-reorder \
		$(PROCESS_TESTS)
endif

check-browser: $(STAMP) ## try the status page in the system's Chromium, which must be installed
	@exec $(BIN)/python tools/run_server_tests.py tests/browser $(ARGS)

sim: $(STAMP) ## simulate nodes, or SDS groups, under faults; ARGS='--help' lists what can be asked
	@exec $(BIN)/python -m sim $(ARGS)

bench: $(STAMP) ## run the benchmarks; ARGS are names of some and --messages N
	@exec $(BIN)/python -m bench $(ARGS)

soak: $(STAMP) ## three nodes under fire for twenty minutes; ARGS='--help' lists what can be asked
	@exec $(BIN)/python -m bench soak $(ARGS)

lint: $(STAMP) ## check format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(STAMP) ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(STAMP) ## check types, strictly
	$(BIN)/mypy

proto: $(STAMP) ## generate storenode/wire/ from proto/
	$(BIN)/python tools/generate_wire.py

proto-check: $(STAMP) ## fail if storenode/wire/ is not what proto/ gives
	$(BIN)/python tools/generate_wire.py --check

check-deploy: $(STAMP) ## validate deploy/ with docker-compose, promtool, kubectl and systemd-analyze
	@$(BIN)/python tools/generate_dashboard.py --check
	@$(BIN)/python -m pytest tests/deploy $(ARGS)

audit-dependencies: $(STAMP) ## ask for known vulnerabilities of dependencies; code 3: not known
	@$(BIN)/python tools/audit_dependencies.py

lock: $(STAMP) ## pin all dependencies with hashes; ARGS=--upgrade takes newer versions
	$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --all-extras \
		--build-deps-for editable --no-header --no-annotate --no-emit-index-url \
		--no-emit-trusted-host --no-emit-find-links --output-file $(LOCK) $(ARGS) pyproject.toml

clean: ## remove the virtual environment, caches and build products; data stays
	rm -rf $(VENV) build dist storenode.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f reconcile/_kernel*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): $(LOCK) pyproject.toml setup.py tools/make_venv.sh $(wildcard reconcile/native/*)
	@PYTHON='$(PYTHON)' sh tools/make_venv.sh $(VENV) $(LOCK)
	@touch $@
