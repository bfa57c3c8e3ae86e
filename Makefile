# `make help` lists the targets. Each one sets up what it needs in .venv first.

PYTHON ?= python3
JOBS ?= 3
BIN := .venv/bin
OF ?= core solve workflow pipeline
COUNT ?= 60
SEED ?= 0

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench notebooks mutate stress clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16
	@echo "Variables: PYTHON=$(PYTHON) (3.11 or newer), JOBS=$(JOBS) (test processes), OF, COUNT, SEED (of mutate)"

demo: .venv/.with-plot ## run the demonstration and say where its page is
	$(BIN)/dovetail demo --out out/demo
	@find "$(CURDIR)/out/demo" -name '*.html' | sed 's|^|open file://|'

test: lint ## lint, then run every test
	$(BIN)/pytest -n $(JOBS) --dist loadgroup

lint: .venv/.with-test ## check style, types and the layer rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: .venv/.with-test ## measure, say which figures are outside their ranges, write docs/figures.md
	$(BIN)/python -m bench

notebooks: .venv/.with-test ## run the notebooks and keep what they show
	$(BIN)/python -m tools.notebooks

mutate: .venv/.with-test ## draw random mutants of OF, and show those that no test notices
	$(BIN)/python -m tools.mutate --of $(OF) --count $(COUNT) --seed $(SEED) --jobs $(JOBS)

stress: .venv/.with-test ## run the live tests beside CPU hogs on all cores
	$(BIN)/python -m tools.stress --jobs $(JOBS)

clean: ## remove outputs and caches, but not .venv
	rm -rf out dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# Installs again when the dependencies change: .with-EXTRA is the stamp of `pip install dovetail[EXTRA]`.
.venv/.with-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Dovetail needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
