# Commands of the project; `make` or `make help` lists them. `make demo` and `make test` need nothing but Python and make:
# they create .venv, install millrace into it, and see to Java.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
# further arguments, as in: make test ARGS='-k meshjoin'
ARGS   ?=

SHELL         := /bin/bash
.SHELLFLAGS   := -eu -o pipefail -c
.DEFAULT_GOAL := help

DEV := $(VENV)/.installed-dev
# The demo needs the Spark extra only; a development install has it already.
RUN := $(if $(wildcard $(DEV)),$(DEV),$(VENV)/.installed-spark)

.PHONY: help demo test test-slow test-cluster check format bench clean java

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: java $(RUN) ## join a bursty stream of sales beside Spark's own join, and compare (about a minute once installed)
	@$(BIN)/millrace demo $(ARGS)

test: java $(DEV) ## the fast tests, in two processes: one with all that need Spark, one with the rest
	@$(BIN)/pytest -m 'not slow' -n 2 $(ARGS)

test-slow: java $(DEV) ## the slow tests: big tables, hard memory limits, killed queries
	@$(BIN)/pytest -m 'slow and not cluster' $(ARGS)

test-cluster: java $(DEV) ## on a Spark master with two workers and through Spark Connect; an executor is killed on the way
	@$(BIN)/pytest -m cluster $(ARGS)

check: $(DEV) ## static checks: ruff, formatting, mypy strict, import contracts
	@echo '==> ruff check';          $(BIN)/ruff check .
	@echo '==> ruff format --check'; $(BIN)/ruff format --check .
	@echo '==> mypy';                $(BIN)/mypy
	@echo '==> lint-imports';        $(BIN)/lint-imports

format: $(DEV) ## format the code and apply the safe fixes
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

bench: java $(DEV) ## compare enrichment with what people use instead; writes bench-enrich.json
	@$(BIN)/millrace bench enrich --json bench-enrich.json $(ARGS)

clean: ## remove caches, build output and what Spark left behind (keeps .venv and data)
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@rm -rf spark-warehouse metastore_db derby.log artifacts
	@find . -path ./$(VENV) -prune -o -path ./.git -prune -o -type d -name __pycache__ -print0 | xargs -0 rm -rf
	@echo 'clean (to start over: rm -rf $(VENV))'

java:
	@tools/ensure-java

# One stamp per extra. A changed pyproject.toml installs again; a changed source file does not need to.
# Earlier checkouts were installed under the name `millrace`, which is somebody else's package on PyPI: it goes first, because
# both names own the command and the import.
$(VENV)/.installed-%: pyproject.toml
	@tools/ensure-venv $(VENV) $(PYTHON)
	@$(PIP) uninstall --yes millrace
	@echo "==> installing millrace-spark[$*] into $(VENV) (the first time takes a few minutes)"
	@$(PIP) install -e '.[$*]'
	@touch $@
