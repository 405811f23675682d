# Two commands do everything on a fresh machine with Python 3.11 or later: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin

# Compiled modules are kept whatever the environment says: every worker, and every process that a test starts, needs them.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# These tests need the machine for themselves: beside another program on its core, serving rightly grants no credit.
BUSY := tests/runtime/engines/test_busy.py

.PHONY: demo test test-long check dashboard gpu-kit format clean

demo: $(READY)  ## a live co-serving deployment on this machine's CPU, then its cost report
	@$(BIN)/rose demo

test: $(READY)  ## the test suite, a short live deployment among it
	@$(PYTEST) tests --ignore $(BUSY) --numprocesses auto --dist loadfile
	@$(PYTEST) $(BUSY)

test-long: $(READY)  ## all tests over all of their cases: hours
	@ROSE_TESTS_LONG=1 $(PYTEST) tests -m "not live" --timeout 3600 --numprocesses auto --dist loadfile
	@ROSE_TESTS_LONG=1 $(PYTEST) tests -m live --timeout 3600

check: $(READY)  ## formatting, lint, types, and who may import whom
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

dashboard: $(READY)  ## the dashboard on the newest ledger, or on the sample one
	@$(BIN)/rose dashboard

gpu-kit: $(READY)  ## build/gpu-kit: what a GPU host with no network needs beside its own torch; 60 MB at most
	@$(BIN)/python -m deploy.gpu_kit

format: $(READY)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:  ## what can be made again; a ledger cannot
	rm -rf $(VENV) build *.egg-info

# SGLang, torchvision and the small model go in without their own dependency lists, which name CUDA packages.
# All is compiled at the end on all cores: pip would do it on one, and engines that start side by side each for itself.
$(READY): pyproject.toml $(addprefix requirements/,constraints-cpu.txt sglang-cpu.txt sglang-cpu-nodeps.txt)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12")'
	@echo "Setting up $(VENV): about 3 minutes and 4 GB, once."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --no-compile --constraint requirements/constraints-cpu.txt \
		--requirement requirements/sglang-cpu.txt --editable '.[dev]'
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps --requirement requirements/sglang-cpu-nodeps.txt
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true  # Some templates are no Python.
	@$(BIN)/python -m rose.transfer.compilation
	@touch $@
