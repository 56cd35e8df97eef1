# make run    compare asynchronous algorithms on a small data set (installs the base dependencies only)
# make check  lint, types and the fast tests: under two minutes on two cores, for work in progress
# make test   lint, types and every test
# make docs   build the site

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements/constraints.txt
REQUIREMENTS := pyproject.toml requirements/constraints.txt
RUN_STAMP := $(VENV)/.run-installed
TEST_STAMP := $(VENV)/.test-installed
# Containers often set PYTHONDONTWRITEBYTECODE: all workers, and the many programs that tests start, would compile again.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder

.PHONY: run check test lint docs clean

run: $(RUN_STAMP)
	$(BIN)/offbeat sweep preset:digits-compare --seeds 0,1,2 --out runs/digits-compare

check: $(TEST_STAMP) lint
	$(PYTEST) -m "not slow"

test: $(TEST_STAMP) lint
	$(PYTEST)

lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(TEST_STAMP)
	$(BIN)/mkdocs build --strict

$(RUN_STAMP): $(REQUIREMENTS)
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(TEST_STAMP): $(RUN_STAMP)
	$(PIP) --editable ".[dev,flower,huggingface,notebook,privacy,ray,serve,track,docs]"
	touch $@

clean:
	rm -rf $(VENV) runs site
