# All targets run in .venv, which is installed from requirements.lock. uv comes from PATH, or is installed into .tools.
# Without make: python3 -m venv .venv; .venv/bin/pip install --require-hashes -r requirements.lock;
#          .venv/bin/pip install --no-deps -e . -e gangjobs_sandbox
PYTHON ?= python3
# A version, as in `make lane PYTHON=3.11`, is the lane's; .venv is made by python3 then.
HOST_PYTHON := $(if $(filter 3.%,$(PYTHON)),python3,$(PYTHON))
VENV   := .venv
BIN    := $(VENV)/bin
SYNCED := $(VENV)/.synced
UV     := $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
PYTEST := $(BIN)/python -m pytest --hypothesis-profile=quick
# More workers than cores, because most tests wait for the embedded cluster.
WORKERS ?= 6
QUICK  := not slow and (not airflow or representative)

# Tests start hundreds of Python programs. Without bytecode files, each of them would compile the modules of Airflow.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-ci test-cluster test-kubelet test-queues test-airflow clusters bench check docs format up down lane lock coverage release clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(SYNCED) ## Install requirements.lock into .venv (all other targets do this first)

demo: $(SYNCED) ## Train a model on a gang of four in an embedded cluster, with real Airflow (minutes)
	@$(BIN)/python -m scripts.demo

up: $(SYNCED) ## Start Airflow and an embedded cluster with the example DAGs, in the background
	@$(BIN)/python -m scripts.up start

down: ## Stop what `make up` started
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m scripts.up stop; fi

test: $(SYNCED) ## Run the tests for each commit: rules, sandbox, provider on it, one gang in real Airflow (minutes)
	$(PYTEST) -q -n $(WORKERS) --dist worksteal -m "$(QUICK)" \
		--ignore=tests/cluster --ignore=tests/kubelet --ignore=tests/launchers --ignore=tests/queues --ignore=tests/airflow/postgres --ignore=tests/airflow/ui

test-all: $(SYNCED) ## Run every test, and print a table of the tiers (docs/testing.md)
	@$(BIN)/python -m tests.tiers all

test-ci: $(SYNCED) ## Run the tests that .ci/run adds to make test: slow variants, conformance to 1.37, one gang on 1.36, one kill on PostgreSQL, the UI tab
	@$(BIN)/python -m tests.tiers ci

test-cluster: $(SYNCED) ## Run all tests against real control planes of Kubernetes 1.33 to 1.37
	@$(BIN)/python -m tests.tiers cluster conformance

test-kubelet: $(SYNCED) ## Run real containers: Debian's containerd and a kubelet of Kubernetes 1.37 and 1.36 (needs root on Linux)
	@$(BIN)/python -m tests.tiers kubelets

test-queues: $(SYNCED) ## Run all tests with the real Kueue, Volcano and coscheduling beside real control planes
	@$(BIN)/python -m tests.tiers queues

test-airflow: $(SYNCED) ## Run all tests with real Airflow: on SQLite, on PostgreSQL with killed processes, and its pages
	@$(BIN)/python -m tests.tiers postgres airflow ui

# The Python of a lane; 3.11 if none is named.
LANE = lane-$(AIRFLOW)-$(or $(filter 3.%,$(PYTHON)),3.11)

lane: $(SYNCED) ## Run unit and provider tests and the demo with another Airflow and Python: make lane AIRFLOW=3.1 PYTHON=3.11
	@test -n "$(AIRFLOW)" || { echo "Name an Airflow: make lane AIRFLOW=3.1 PYTHON=3.11 (or lowest; tests/lanes.py)" >&2; exit 1; }
	@$(BIN)/python -m tests.tiers $(LANE)

coverage: $(SYNCED) ## Measure which branches of the rules the unit and provider tests take; fail below the floor
	@rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -q -n $(WORKERS) --dist worksteal --hypothesis-profile=quick -m "not slow and not airflow" tests/unit tests/provider
	@$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

release: $(SYNCED) ## Check and build a release, and try what was built, without an upload: make release VERSION=0.1.0
	@test -n "$(VERSION)" || { echo "Name the version: make release VERSION=0.1.0" >&2; exit 1; }
	@$(BIN)/python -m scripts.release $(VERSION)

clusters: $(SYNCED) ## Build the control planes, the Kueue and JobSet controllers and the gang schedulers that are missing (an hour)
	@$(BIN)/python -m tests.cluster.controlplane.build 1.33 1.34 1.35 1.36 1.37
	@$(BIN)/python -m tests.queues.kueue.build
	@$(BIN)/python -m tests.queues.jobset.build
	@$(BIN)/python -m tests.queues.schedulers.build

BENCHMARKS := parse task_process wait notice harvest

bench: $(SYNCED) ## Compare the cost of the provider and of its peer on a real API server, in quick runs (some minutes)
	@$(BIN)/python -m tests.cluster.controlplane.build 1.36 1.37
	@for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name --quick --out /dev/null || exit 1; done

check: $(SYNCED) ## Check format, lint, types (also of the tests) and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(SYNCED) ## Build the documentation site into build/docs; fail on each warning
	@AIRFLOW_HOME=$(CURDIR)/build/airflow $(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs build/docs
	@echo "The start page is build/docs/index.html"

format: $(SYNCED) ## Format the sources and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

RESOLVE = $(UV) pip compile --quiet --universal --python-version 3.11 --no-header --upgrade --all-extras \
	--no-emit-package airflow-provider-gangjobs --no-emit-package gangjobs-sandbox pyproject.toml
# Versions of the time of each Airflow. pytest-asyncio is newer, and structlog 25.5 breaks Airflow 3.1.1.
RESOLVE_LANE = $(RESOLVE) --group test --no-annotate --exclude-newer-package pytest-asyncio=2026-06-20

lock: $(UV) ## Resolve the dependencies of pyproject.toml anew into requirements.lock, and those of the lanes
	$(RESOLVE) --group dev --generate-hashes -o requirements.lock
	$(RESOLVE_LANE) --exclude-newer 2026-03-15 -o requirements/airflow-3.1.lock
	$(RESOLVE_LANE) --exclude-newer 2026-06-20 -o requirements/airflow-3.2.lock
	$(RESOLVE_LANE) --exclude-newer 2025-11-15 --exclude-newer-package structlog=2025-10-15 --resolution lowest-direct -o requirements/airflow-lowest.lock

clean: down ## Remove all files that make has created
	rm -rf $(VENV) .lanes .tools .demo .airflow .sandbox .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache .coverage* build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.tools/bin/uv:
	@echo "uv is not on PATH: installing it into .tools"
	@$(HOST_PYTHON) -m venv .tools || { \
		echo "Cannot create a virtual environment. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@.tools/bin/python -m pip install --quiet --disable-pip-version-check uv

$(SYNCED): requirements.lock pyproject.toml gangjobs_sandbox/pyproject.toml | $(UV)
	@$(HOST_PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || { \
		echo "Python 3.11 to 3.14 is needed, but $(HOST_PYTHON) is $$($(HOST_PYTHON) --version 2>&1 | head -n 1). Name another: make PYTHON=python3.12 ..." >&2; \
		exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(HOST_PYTHON) -m venv --without-pip $(VENV); }
	@echo "installing requirements.lock into $(VENV)"
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable . --editable gangjobs_sandbox
	@touch $@
