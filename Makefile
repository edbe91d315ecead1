# Everything runs in .venv, which `make setup` creates from the pinned requirements.lock.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test check lint bench-env lock clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "grpo-cl needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $(READY)

demo: setup
	$(BIN)/grpo-cl demo

test: setup
	$(BIN)/pytest -m "" --numprocesses 2 --dist loadfile

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

check: lint test

bench-env: setup
	$(BIN)/python benchmarks/environments.py

lock:  # writes requirements.lock from pyproject.toml: names and versions, nothing else
	rm -rf .lock-venv && $(PYTHON) -m venv .lock-venv
	.lock-venv/bin/python -m pip install --quiet --disable-pip-version-check ".[dev]"
	.lock-venv/bin/python -m pip freeze --exclude grpo-cl --exclude-editable \
		| sed 's/+cpu$$//' > requirements.lock
	rm -rf .lock-venv

clean:
	rm -rf .venv .lock-venv .pytest_cache .ruff_cache runs
