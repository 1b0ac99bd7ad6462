# Short names for the commands of book/tasks.py, which works on any system, without make as well. `make` lists them.

PYTHON  ?= python3
WORKERS ?=
CHAPTER ?=
BENCH   ?=
COLAB   ?=
VERSION ?=

TASKS := $(PYTHON) book/tasks.py

.DEFAULT_GOAL := help
.PHONY: help setup book back tidy html pdf workbook test test-pages test-fast test-here test-workbook style types tangle run bench gpu anywhere mutants colab browser release clean

help:
	@$(TASKS)

setup book back html pdf workbook tangle style types browser clean gpu:
	@$(TASKS) $@

test test-pages test-fast test-here test-workbook anywhere mutants:
	@$(TASKS) $@ $(if $(WORKERS),--workers $(WORKERS))

run tidy: # make run CHAPTER=03, make tidy CHAPTER=03
	@$(TASKS) $@ $(CHAPTER)

bench: # make bench BENCH="--only training"
	@$(TASKS) $@ $(BENCH)

colab: # make colab COLAB="--python /path/to/python3.13 03"
	@$(TASKS) $@ $(COLAB)

release: # make release VERSION=0.3.0
	@$(TASKS) $@ $(VERSION)
