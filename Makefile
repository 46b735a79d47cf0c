# make demo and make test each set everything up on a fresh machine, then do their job.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
OTHER := .venv-3.12

.PHONY: help demo test lint typecheck unit test-3.12 check-deep clean

help: ## this list
	@grep -hE '^[a-z0-9.-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

export JAXMEM_REFERENCE ?= $(abspath ../shared)

demo: $(STAMP) ## explore both systems on a real model and real traffic
	$(VENV)/bin/jaxmem demo

test: lint typecheck unit test-3.12 ## ruff, types, tests and docs; on 3.12 the tests but for slow ones, where it is present

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

typecheck: $(STAMP)
	$(VENV)/bin/ty check

unit: $(STAMP)
	$(PY) -m pytest

test-3.12: $(STAMP)
	@if other=$$(tools/find-python 3.12 2>/dev/null) && [ "$$($(PY) -c 'import sys; print(sys.version_info[1])')" != 12 ]; then \
	  tools/make-venv $(OTHER) "$$other" && $(OTHER)/bin/python -m pytest -m 'not deep and not slow' tests; \
	else echo "Python 3.12: not present, or already the one tested"; fi

check-deep: $(STAMP) ## long differential runs
	$(PY) -m pytest -m deep

clean: ## forget the environments and what the demo wrote
	rm -rf $(VENV) $(OTHER) out

$(STAMP): pyproject.toml constraints.txt
	tools/make-venv $(VENV) "$$(tools/find-python)"
