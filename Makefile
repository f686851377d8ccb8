# make demo | test | bench | federation-demo | test-slow | lint: each sets up what it needs on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
export MPLBACKEND ?= Agg

.PHONY: setup demo test bench federation-demo test-slow lint clean

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/python -m experiments.demo --out demo

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

bench: setup
	$(BIN)/python -m experiments.benchmarks.rounds --out benchmark

federation-demo: .venv-flower/.installed
	.venv-flower/bin/python -m experiments.federation_demo --out federation-demo

.venv-flower/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/pip install -q --disable-pip-version-check -c constraints.txt -e ".[flower]"
	touch $@

test-slow: setup
	$(BIN)/python -m pytest -m slow

lint: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

clean:
	rm -rf .venv demo build dist *.egg-info
