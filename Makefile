# The only commands a contributor needs. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help install demo results test soak soak-serving fuzz lint format clean

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
# Flags for the demo: make demo ARGS="--seconds 60 --json"
ARGS  ?=
# The text of `make results`: docs, a file, or a folder with train.txt, valid.txt and test.txt
DATA  ?= docs

help: ## show this list
	@echo 'make targets:'
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16
	@echo
	@echo 'Set PYTHON=/path/to/python3.x to choose the interpreter (3.11 or newer).'

install: $(STAMP) ## set up .venv with the pinned versions (quick when nothing changed)
	@:

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@VENV=$(VENV) bash scripts/setup.sh
	@touch $@

demo: install ## run a whole swarm on this machine; ARGS="--seconds 60 --json" passes flags on
	@$(BIN)/blockswarm demo $(ARGS)

results: install ## run every experiment on DATA (hours; goes on where it stopped) and write docs/results.md
	@PATH="$(CURDIR)/$(BIN):$$PATH" DATA="$(DATA)" bash scripts/results.sh

test: install ## lint, types and all tests: unit first, then integration with real processes
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/test.sh

soak: install ## hundreds of rounds of a real swarm under faults; ARGS="--rounds 60 --matrix --report FILE" (1000 rounds: 1.5 hours)
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/links.sh && PYTHONPATH=.dev:. $(BIN)/python -m tests.soak $(ARGS)

soak-serving: install ## 3000 texts from holders that are killed and exchanged, each compared to the byte; ARGS="--texts 50 --report FILE" (all: 45 minutes)
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/links.sh && PYTHONSAFEPATH=1 PYTHONPATH=.dev:. OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak.serving $(ARGS)

fuzz: install ## fuzz everything that reads strangers' bytes; ARGS="--seconds 300 --target ngram-file" (28 targets, a minute each)
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/links.sh && PYTHONSAFEPATH=1 PYTHONPATH=.dev:. OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(ARGS)

lint: install ## ruff check, ruff format --check, mypy
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/test.sh lint

format: install ## let ruff reorder imports and format every file
	@$(BIN)/ruff check --quiet --select I --fix . && $(BIN)/ruff format .

clean: ## remove .venv, caches and build leftovers (never a swarm's state)
	rm -rf $(VENV) .dev build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
