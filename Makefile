PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint bench clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: $(READY) ## Make .venv with everything (other targets do this by themselves, once)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[attacks,export,flower,h5,privacy,track,dev]'
	# torchattacks is what our attacks are compared with in tests; its own requirements would replace torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps torchattacks==3.5.1
	touch $(READY)

demo: $(READY) ## Train FedRBN and FATBN on the embedded digits and print their accuracies (a few minutes)
	$(BIN)/fedrbn compare experiments/demo.toml --methods fedrbn,fatbn --out runs/demo

test: $(READY) ## The tests that take seconds each, with a coverage figure
	$(BIN)/python -m pytest -m "not slow" --cov --cov-report=term

test-slow: $(READY) ## The tests that need minutes, real data (FEDRBN_DATA) or processes
	$(BIN)/python -m pytest -m slow

lint: $(READY) ## Ruff and strict mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) ## Speed of training steps and of evaluation against plain loops and libraries, as ratios
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/evaluation.py

clean: ## Remove the environment and caches (runs are kept)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
