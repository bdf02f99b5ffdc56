# `make demo` and `make test` are each the only command needed on a fresh clone.
# The first one makes .venv and installs everything into it; nothing else on the machine is touched.

SHELL := /bin/sh
.DEFAULT_GOAL := help
BIN := .venv/bin
READY := .venv/.ready

# The first Python of at least 3.11 that really runs; `make PYTHON=… test` names another.
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	"$$p" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
endif

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.PHONY: help demo test lint types docs bench clean

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY)  ## a cluster on this machine, and what the driver does with it
	@$(BIN)/picopyn demo $(ARGS)

test: $(READY)  ## all tests (ARGS="-k 'one or other'" for some)
	$(BIN)/python -m pytest -n 4 --maxschedchunk 32 $(ARGS)

lint: $(READY)  ## style and form
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## both type checkers
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python

docs: $(READY)  ## the manual, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(READY)  ## speed beside other pools, on plain PostgreSQL (ARGS="--size tiny" for a try)
	@$(BIN)/python -m pip install --quiet --group bench || echo "some peers could not be installed; going on without" >&2
	$(BIN)/python -m benchmarks --everything $(ARGS)

clean:  ## take away what was made
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build *.egg-info
	rm -f picopyn/dialects/picodata/*.so

# pip 25.1 is the first that reads the dependency group `dev`.
$(READY): pyproject.toml setup.py picopyn/dialects/picodata/_quick_keys.c Makefile
	@test -n "$(PYTHON)" || { echo "picopyn needs Python 3.11 or newer, with venv; none was found" >&2; exit 1; }
	@echo "making .venv with $(PYTHON) …"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --group dev --editable '.[testing,docs,cli,yugabyte]'
	@touch $(READY)
