# The only entry point: CI and people call the same targets.
PYTHON ?= python3
VENV := .venv
RUNTIMES := .venv-runtimes
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
FIXTURE := tests/fixtures/tiny/bundle.json
DATA := .
RUNS := runs
ADVISORIES := api.osv.dev
TRAIN = $(BIN)/python -m model train $(DATA)/train.tsv --dev $(DATA)/dev.tsv --case initialisms --run $(RUNS)

# Three processes on two cores, because many tests wait. Torch has one thread in each: waiting threads
# of one process would take another's core. Hundreds of processes import the service: its bytecode is
# kept even where PYTHONDONTWRITEBYTECODE is set, as in many images, so that each need not compile it.
TEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

.DEFAULT_GOAL := all
.PHONY: all serve test test-long bench runtimes g2p-en check audit dist sbom docs screenshot format fixture image clean

all: check test

$(VENV)/serve: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $@

$(VENV)/dev: $(VENV)/serve
	$(INSTALL) -e '.[model,convert,otel,protocols,detect,real-models,dev,docs]'
	touch $@

$(VENV)/ray: $(VENV)/dev
	$(INSTALL) -e '.[ray]'
	touch $@

$(VENV)/audit: $(VENV)/dev
	$(INSTALL) -e '.[audit]'
	touch $@

serve: $(VENV)/serve
	$(BIN)/python -m service

$(FIXTURE): $(wildcard model/*.py model/*/*.py model/*/*/*.py) tests/make_fixture.py | $(VENV)/dev
	$(BIN)/python -m tests.make_fixture $(@D)

fixture: $(FIXTURE)

test: $(VENV)/dev $(FIXTURE)
	$(TEST) -m 'not long'

test-long: $(VENV)/ray $(FIXTURE)
	$(TEST)

# Peers of the benchmark that need an older transformers; `make bench` measures them if present.
runtimes: $(VENV)/dev
	$(PYTHON) -m venv $(RUNTIMES)
	$(RUNTIMES)/bin/python -m pip install --quiet --disable-pip-version-check \
	    -r benchmarks/runtimes.txt

bench: $(VENV)/dev
	$(BIN)/python -m benchmarks

# The default model: two are trained, then one that learns from both (docs/pronunciation.md).
# DATA is the folder of train.tsv and dev.tsv.
g2p-en: $(VENV)/dev
	$(TRAIN)/one
	$(TRAIN)/two --no-rotary --dropout 0.1 --concatenated 0 --epochs 60
	$(TRAIN)/g2p-en --start $(RUNS)/one --teacher $(RUNS)/one --teacher $(RUNS)/two \
	    --synthetic-sources 2 --dropout 0 --learning-rate 7e-4 --epochs 20 --average 2 --seed 1

check: $(VENV)/dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports
	@if $(BIN)/python -c 'import socket; socket.create_connection(("$(ADVISORIES)", 443), 3)' 2>&-; \
	then $(MAKE) audit; else echo "packages not audited: $(ADVISORIES) cannot be reached"; fi

# Fails if a pinned package has a known vulnerability, or the database cannot be reached. It is OSV's:
# mirrors of PyPI answer without the advisories of PyPI, which looks like a clean result.
audit: $(VENV)/audit
	$(BIN)/pip-audit --vulnerability-service osv --disable-pip --no-deps -r constraints.txt

# build/dist: an sdist, and a wheel of it, which is installed alone and pronounces a word.
dist: $(VENV)/dev
	rm -rf build/dist build/alone
	$(BIN)/python -c 'from setuptools.build_meta import build_sdist; build_sdist("build/dist")' >/dev/null
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/dist build/dist/*.tar.gz
	$(PYTHON) -m venv build/alone
	build/alone/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build/dist/*.whl
	cd build/alone && test "$$(bin/heed decode knight)" = 'N AY1 T'

# build/heed.cdx.json: what the image installs for a CPU, as CycloneDX.
sbom: $(VENV)/audit
	$(PYTHON) -m venv --clear build/image
	build/image/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt .
	build/image/bin/python -m pip uninstall --quiet --yes pip setuptools
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	    -o build/heed.cdx.json build/image/bin/python

# build/site: docs/ as a site. Open its index.html; searching needs a server, such as
# `python3 -m http.server -d build/site`.
docs: $(VENV)/dev
	$(BIN)/mkdocs build

# The pictures of the page: README's, and the one that links to the page show.
screenshot: $(VENV)/dev
	$(BIN)/python -m tests.web.screenshots

format: $(VENV)/dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

image:
	docker build -t heed .

clean:
	rm -rf $(VENV) $(RUNTIMES) tests/fixtures build *.egg-info
