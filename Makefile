PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
READY := $(VENV)/.ready
# a crashed worker ends the tests: pytest-xdist waits for ever if it replaces one under loadfile
PARALLEL := -n 2 --dist loadfile --max-worker-restart 0
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup demo flower-demo test coverage test-slow browser lint bench bench-peers adversaries clean soak fuzz audit docs dist

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: $(READY) ## Make .venv with everything (other targets do this by themselves, once)

$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e .
	touch $(CORE)

$(READY): $(CORE)
	$(PIP) -c constraints.txt -e '.[all,dev,docs]'
	# torchattacks is what our attacks are compared with in tests; its own requirements would replace torch
	$(PIP) --no-deps torchattacks==3.5.1
	touch $(READY)

demo: $(CORE) ## Train FedRBN and FATBN on the embedded digits, print accuracies, write a report (a few minutes)
	$(BIN)/fedrbn demo

flower-demo: $(READY) ## The same over TLS: a SuperLink and 4 authenticated SuperNodes as processes of this machine
	rm -rf runs/flower-demo
	$(BIN)/fedrbn deploy demo flower-demo --out runs/flower-demo

test: $(READY) ## The tests that take seconds each
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" $(PARALLEL) --durations=20

coverage: $(READY) ## The same tests with a coverage figure, which takes about a quarter longer
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" $(PARALLEL) --cov --cov-report=term

browser: ## Install chromium for the tests of the report page, where it is missing and apt-get can
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium) \
			|| echo "chromium could not be installed: the tests of the report page will be skipped"; \
	else echo "chromium is missing: install it (Debian: sudo apt-get install chromium) for the tests of the report page"; fi

test-slow: $(READY) browser ## The tests that need minutes, real data (FEDRBN_DATA) or processes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow $(PARALLEL) --durations=20

lint: $(READY) ## Ruff and strict mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) ## Speed against plain loops and libraries, growth, and a profile: targets and what was reached (10 minutes)
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/profiling.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/together.py
	$(BIN)/python benchmarks/estimates.py
	$(BIN)/python benchmarks/flower.py
	$(BIN)/python tools/pages.py

PEERS := .venv-peers
$(PEERS)/.ready: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements.txt
	touch $(PEERS)/.ready

bench-peers: $(READY) $(PEERS)/.ready ## FedAvg and FedBN beside plain PyTorch, Flower's simulation and pfl-research (15 minutes)
	$(BIN)/python benchmarks/peers/bench.py $(PEERS)/bin/python; measured=$$?; $(BIN)/python tools/pages.py; exit $$measured

adversaries: $(READY) ## Attacks inside the federation and the cost of privacy, with and without defences (about 10 minutes)
	$(BIN)/python benchmarks/adversaries.py benchmarks/byzantine.toml results/byzantine
	$(BIN)/python benchmarks/adversaries.py benchmarks/privacy.toml results/privacy

soak: $(READY) ## Kill, hang, cut off and poison training on purpose; makes the tables of docs/reliability.md (under 45 minutes)
	$(BIN)/python -m soak
	$(BIN)/python -m soak.network
	$(BIN)/python -m soak.table

CASES := 12000
SEED := 1
fuzz: $(READY) ## Hostile settings, files, run directories, models and messages: 12,000 cases, generated from SEED (10 minutes)
	PYTHONPATH=tests $(BIN)/python -m fuzz.soak --cases $(CASES) --seed $(SEED)
	$(BIN)/python -m soak.table

docs: $(READY) ## The documentation site, in site/: open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

dist: ## Wheel and source archive in dist/, checked as a registry would
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/pip install --quiet --disable-pip-version-check build twine
	rm -rf dist
	.venv-dist/bin/python -m build --quiet
	.venv-dist/bin/twine check --strict dist/*

audit: $(READY) ## Dependencies pinned, licences, security rules, foreign code, secrets: what can be checked offline
	$(BIN)/python tools/audit.py

clean: ## Remove the environment and caches (runs are kept)
	rm -rf $(VENV) $(PEERS) .venv-dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
