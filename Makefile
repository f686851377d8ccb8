# make demo | test (types and quick) | docs | bench | federation-demo | test-repeats | test-flower | test-slow |
# test-machines | lint | lock | licences | audit: each sets up what it needs on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
export MPLBACKEND ?= Agg
PARALLEL := -n auto --maxprocesses 8 --dist worksteal
# Else each process that a test starts compiles every module anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test types quick docs bench federation-demo test-repeats test-flower test-slow test-machines lint lock licences audit clean

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/python -m experiments.demo --out demo

# Types take more than a minute of one core in a fresh clone: the tests run beside them.
test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory -j2 types quick

types: setup
	$(BIN)/mypy

quick: setup
	$(BIN)/python -m pytest $(PARALLEL)

# Further cases of what the quick tests show: CI runs them.
test-repeats: setup
	$(BIN)/python -m pytest $(PARALLEL) -m "repeats and not slow"

# Search needs a server: .venv/bin/python -m mkdocs serve
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

bench: setup
	$(BIN)/python -m experiments.benchmarks rounds --out benchmark
	$(BIN)/python -m experiments.benchmarks images --out benchmark

federation-demo: .venv-flower/.installed
	.venv-flower/bin/python -m experiments.federation_demo --out federation-demo

.venv-flower/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/pip install -q --disable-pip-version-check -c constraints.txt -e ".[flower,privacy]" \
		hypothesis pytest pytest-xdist
	touch $@

# What `make test` skips, as Flower is not in `dev`: real SuperLinks and SuperNodes. The demo's tests,
# which race with the leases of killed nodes, need a machine at rest; they are run by hand.
FLOWER ?= slow or not slow
test-flower: .venv-flower/.installed
	.venv-flower/bin/python -m pytest -m "$(FLOWER)" -n 3 --dist worksteal \
		$(addprefix tests/stforecast/flower/test_,continuation.py fuels_app.py gate.py late_nodes.py own_app.py server_app.py wire.py) \
		tests/stforecast/cli/test_node.py tests/vision/test_live_nodes.py \
		$(addprefix tests/experiments/test_,strangers.py secure_federation.py)

# Long tests, and the other cases of large matrices: half an hour on two cores.
test-slow: setup
	$(BIN)/python -m pytest $(PARALLEL) -m slow

# Or some of them: make test-machines MACHINES="sse oldest"; tests/machines.py lists them.
test-machines: setup
	$(BIN)/python tests/machines.py $(MACHINES)

lint: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

# For newer versions delete lines of constraints.txt first, but not those of torch and torchvision.
lock: .venv-audit/.installed
	CUSTOM_COMPILE_COMMAND="make lock" .venv-audit/bin/pip-compile -q --all-extras --strip-extras \
		--no-annotate --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		-o constraints.txt pyproject.toml
	sed -i -e 's/^\(torch==[0-9.]*\)+.*/\1/' -e '/^stforecast @/d' constraints.txt

# --strict: a package that could not be audited is an error, not a success. Then the distributions.
audit: .venv-audit/.installed
	.venv-audit/bin/pip-audit --strict --disable-pip --no-deps -r constraints.txt
	.venv-audit/bin/validate-pyproject pyproject.toml
	rm -rf dist && .venv-audit/bin/python -m build -q
	.venv-audit/bin/twine check --strict dist/*
	.venv-audit/bin/check-wheel-contents dist/*.whl

# Licences of the packages of both environments; licences.csv keeps the others'.
licences: setup .venv-flower/.installed
	$(BIN)/python tests/licences.py
	.venv-flower/bin/python tests/licences.py

.venv-audit/.installed:
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/pip install -q --disable-pip-version-check pip-tools pip-audit \
		build check-wheel-contents twine validate-pyproject
	touch $@

clean:
	rm -rf .venv .venv-flower .venv-audit .machines demo site build dist *.egg-info
