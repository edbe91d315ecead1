# Everything runs in .venv, which `make setup` creates from the locks in requirements/.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
LOCKS := $(addprefix requirements/, core.lock train.lock torch.lock development.lock)
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: setup demo test test-slow test-all test-wheel test-engines check lint bench-env torture docs lock audit sbom clean

setup: $(READY)

# A lock is complete, so pip resolves nothing and verifies the sum of every file. torch follows by
# itself: its CUDA build, where no CPU build is at hand, adds NVIDIA's packages.
$(READY): $(LOCKS) pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "grpo-cl needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP_INSTALL) --no-deps --require-hashes --requirement requirements/development.lock
	$(BIN)/python $(PIP_INSTALL) --requirement requirements/torch.lock
	$(BIN)/python $(PIP_INSTALL) --no-deps --editable .
	touch $(READY)

demo: setup
	$(BIN)/grpo-cl demo

# Workers take over each other's waiting tests, so that both end at the same time.
PYTEST := $(BIN)/pytest --numprocesses 2 --dist worksteal --durations 25

test: setup
	$(PYTEST)

test-slow: setup
	$(PYTEST) -m "slow and not exhaustive"

test-all: setup
	$(PYTEST) -m ""

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --no-cache .  # cached verdicts on import order outlive a file that moves
	$(BIN)/pyright
	$(BIN)/lint-imports

check: lint test

# Engines pin versions that exclude each other, so each has an environment over .venv: what its
# list names is found there first. A list is complete, so pip resolves nothing. A .pth file beside a
# list patches the engine when Python starts: SkyRL needs a newer TypedDict than Python 3.11 has.
ENGINE_TESTS := $(patsubst requirements/%.txt,test-engine-%,$(wildcard requirements/*.txt))
.PHONY: $(ENGINE_TESTS)
.PRECIOUS: .venv-%/.ready

.venv-%/.ready: requirements/%.txt $(READY)
	$(BIN)/python -m venv .venv-$*
	$(BIN)/python -c 'import sys, sysconfig; print(sysconfig.get_path("purelib"), sys.argv[1], sep="\n")' $(CURDIR)/src \
		> $$(.venv-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth
	for patch in $(wildcard requirements/$*.pth); do \
		cp $$patch $$(.venv-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); done
	.venv-$*/bin/python $(PIP_INSTALL) --no-deps --requirement requirements/$*.txt
	touch $@

$(ENGINE_TESTS): test-engine-%: .venv-%/.ready
	.venv-$*/bin/python -m pytest -m "" -W default tests/integrations/engines/test_$*.py  # engines warn a lot

test-engines: $(ENGINE_TESTS)

bench-env: setup
	$(BIN)/python benchmarks/environments.py

# Attacks on runs, files, models and parsers: docs/reliability.md. ONLY='ATTACK/CASE' repeats one case.
SEED ?= 0
SCALE ?= 1
torture: setup
	PYTHONPATH=tests/support $(BIN)/python -m torture --seed $(SEED) --scale $(SCALE) --only "$(ONLY)"

# The wheel, installed outside the checkout without extras: every command works or names its extra.
test-wheel: setup
	$(BIN)/python scripts/check_wheel.py

lock:  # writes requirements/*.lock from pyproject.toml
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python $(PIP_INSTALL) uv
	.venv-lock/bin/python scripts/lock.py $(if $(UPGRADE),--upgrade)
	rm -rf .venv-lock

TOOLS := .venv-tools/.ready

$(TOOLS): requirements/tools.lock
	$(PYTHON) -m venv .venv-tools
	.venv-tools/bin/python $(PIP_INSTALL) --no-deps --require-hashes --requirement $<
	touch $@

docs: setup $(TOOLS)  # the site, in .site/; a link that leads nowhere is an error
	$(BIN)/python scripts/reference_pages.py docs/reference
	.venv-tools/bin/zensical build --clean --strict

audit: $(TOOLS)  # known vulnerabilities of the locked versions
	.venv-tools/bin/python scripts/audit.py $(filter-out %/torch.lock, $(LOCKS))

sbom: $(TOOLS)  # dist/sbom.json, in CycloneDX's format, of what `grpo-cl[train,users]` installs
	.venv-tools/bin/python scripts/sbom.py dist/sbom.json $(filter-out %/development.lock, $(LOCKS))

clean:
	rm -rf .venv .venv-lock .venv-tools .pytest_cache .ruff_cache .cache .site docs/reference dist runs
