# `make` alone lists the commands. The first that needs Python packages makes .venv and installs requirements.txt.

PYTHON ?= python3
CHAPTER ?=
BENCH   ?=
WORKERS ?= 2
CELL_TIMEOUT ?= 900

VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
HTML   := _build/html
# As many one-threaded test processes as there are workers, or they fight for the cores.
QUIET  := OMP_NUM_THREADS=1 PYTHONHASHSEED=0 PYDEVD_DISABLE_FILE_VALIDATION=1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup book html test test-fast anywhere bench mutants tangle run browser repository clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("This book needs Python 3.11 or newer; \
	$(PYTHON) is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 …")'
	@$(PY) -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install --quiet --requirement requirements.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

book: html ## tangle, build the HTML with warnings as errors, say where it lies
	@$(PY) -c 'from pathlib import Path; print("\nThe book:", Path("$(HTML)/index.html").resolve().as_uri())'

# Sphinx reports a warning only for a page that it reads, so a failed build must not count as a page read.
html: tangle
	@$(VENV)/bin/jupyter-book build . --warningiserror --nitpick --keep-going --quiet || { rm -rf _build/.doctrees; exit 1; }

tangle: $(STAMP) ## write transformer/*.py from the chapters
	@$(PY) book/tangle.py

run: $(STAMP) ## execute chapters in place, for the record: make run CHAPTER=03
	@$(PY) book/execute.py $(CHAPTER)

test: $(STAMP) ## everything: package = book, style, book, tests, every notebook cell against its stored output
	@$(PY) book/tangle.py --check
	@$(PY) -m ruff check
	@$(MAKE) --no-print-directory html
	@$(QUIET) $(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile \
	  --nbval --nbval-current-env --nbval-cell-timeout $(CELL_TIMEOUT) tests book

test-fast: $(STAMP) ## package = book, style, form of the notebooks, tests that are not slow
	@$(PY) book/tangle.py --check
	@$(PY) -m ruff check
	@$(QUIET) $(PY) -m pytest --numprocesses $(WORKERS) -m "not slow and not browser" tests

bench: $(VENV)/.bench-installed ## measure speed and memory beside peers: make bench BENCH="--device cuda --only training"
	@$(PY) -m benchmarks.bench $(BENCH)

$(VENV)/.bench-installed: $(STAMP) benchmarks/requirements.txt
	$(PY) -m pip install --quiet --requirement benchmarks/requirements.txt
	@touch $@

anywhere: $(STAMP) ## run every cell under other instruction sets, threads and seeds: about an hour
	@$(PY) tests/anywhere.py --workers $(WORKERS)

mutants: $(STAMP) ## put known faults into a copy of the package, one at a time: the tests must notice
	@$(QUIET) $(PY) tests/mutants.py --workers $(WORKERS)

browser: ## install what the browser tests need: Chromium
	@for name in chromium chromium-browser google-chrome; do \
	  if command -v $$name >/dev/null 2>&1; then echo "Chromium is here: $$(command -v $$name)"; exit 0; fi; \
	done; \
	if command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium </dev/null; \
	else \
	  echo "The browser tests need Chromium on the PATH, as chromium, chromium-browser or google-chrome."; \
	  echo "On Debian and its relatives: sudo apt-get install chromium. Without it they are skipped."; \
	fi

repository: $(STAMP) ## change the repository's address everywhere: make repository URL=https://…
	@$(PY) book/repository.py $(URL)

clean: ## remove what was built; .venv stays
	rm -rf _build build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find book tests transformer benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
