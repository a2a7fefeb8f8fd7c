# Everything on a fresh machine: needs only make and Python >= 3.11, and makes .venv itself.
#
#   make demo    train the demonstration network (ARGS="--seeds 5" is handed on)
#   make test    linter, formatter, types, tests (ARGS="-k conv" goes to pytest); one case in three of
#                each parametrised test, or every case with ARGS or CASES_IN=1
#   make lint    the first three of these
#   make fuzz    random programs against NumPy (ARGS="gradients --seconds 600")
#   make docs    docs/_build/html, warnings are errors
#   make cuda    what runs on an NVIDIA GPU; builds PyCUDA too where there is g++, in minutes
#   make clean   remove what these have made, .venv too
#
# PYTHON=/path/to/python chooses the interpreter of a new .venv.

BIN := .venv/bin
ARGS ?=
CASES_IN ?= $(if $(ARGS),1,3)

# Tests start hundreds of processes: each module is compiled by the first of them alone.
unexport PYTHONDONTWRITEBYTECODE

# Kernels that tests compile are kept between runs on one machine: their keys are their content.
export SYMDNN_TESTS_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/symdnn-tests

.PHONY: demo test lint fuzz docs cuda clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

demo: .venv/.has-viz
	$(BIN)/python -m symdnn demo $(ARGS)

# Types are checked beside the tests, since mypy has one process; what it finds is printed last.
test: .venv/.has-test
	@mkdir -p -m 700 "$(SYMDNN_TESTS_CACHE)"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@found=$$(mktemp); trap 'rm -f "$$found"' EXIT; \
	$(BIN)/mypy >"$$found" 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -q -n auto --dist loadfile --cases-in $(CASES_IN) $(ARGS); tests=$$?; \
	wait $$types || { cat "$$found"; exit 1; }; exit $$tests

fuzz: .venv/.has-test
	$(BIN)/python -m tests.fuzz $(ARGS)

lint: .venv/.has-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.has-docs
	@echo "A page for each module: this takes some minutes, and prints warnings only."
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo docs/_build/html/index.html

cuda: .venv/.has-cuda

clean:
	rm -rf .venv build docs/_build docs/_generated .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

# One stamp for each extra of setup.cfg: a second run installs nothing.
.venv/.has-%: setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

.venv/.has-cuda: setup.cfg pyproject.toml tools/install_cuda.sh | $(BIN)/python
	tools/install_cuda.sh .venv
	@touch $@

# The newest Python that all dependencies have wheels for comes first. A name on the PATH may be
# a shim without an interpreter behind it, or lack venv, so each is tried.
$(BIN)/python:
	@for python in $(PYTHON) python3.13 python3.12 python3.11 python3.14 python3; do \
	    if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	        >/dev/null 2>&1; then \
	        echo "making .venv with $$($$python --version)"; \
	        exec $$python -m venv .venv; \
	    fi; \
	done; \
	echo "symdnn needs Python 3.11 or newer, with its venv module" >&2; exit 1
