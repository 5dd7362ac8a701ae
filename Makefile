# The only entry point: CI and people call the same targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
FIXTURE := tests/fixtures/tiny/bundle.json

.DEFAULT_GOAL := all
.PHONY: all serve test test-long bench check format fixture image clean

all: check test

$(VENV)/serve: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[cpu]'
	touch $@

$(VENV)/dev: $(VENV)/serve
	$(INSTALL) -e '.[cpu,model,dev]'
	touch $@

serve: $(VENV)/serve
	$(BIN)/python -m service

$(FIXTURE): $(wildcard model/*.py) tests/make_fixture.py | $(VENV)/dev
	$(BIN)/python -m tests.make_fixture $(@D)

fixture: $(FIXTURE)

test: $(VENV)/dev $(FIXTURE)
	$(BIN)/python -m pytest -m "not long"

test-long: $(VENV)/dev $(FIXTURE)
	$(BIN)/python -m pytest

bench: $(VENV)/dev
	$(BIN)/python -m benchmarks

check: $(VENV)/dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

image:
	docker build -t heed .

clean:
	rm -rf $(VENV) tests/fixtures build *.egg-info
