# `make run` compares asynchronous rules, `make test` runs every check, `make docs` builds the site.
# All of them set up .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test lint docs clean

run: $(STAMP)
	$(BIN)/offbeat sweep preset:digits-compare --seeds 0,1,2 --out runs/digits-compare

test: $(STAMP) lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

$(STAMP): pyproject.toml requirements/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements/constraints.txt --editable ".[dev,flower,privacy,ray,serve,track,docs]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) runs site
