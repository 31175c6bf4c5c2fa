# Needs nothing but Python 3.11, 3.10 or 3.12: every target makes its own environment.
VENV ?= .venv
PYTHON := $(VENV)/bin/python
DOCS_VENV ?= .venv-docs
SPHINX := $(DOCS_VENV)/bin/python -m sphinx -q -E -W -n --keep-going -d build/doctrees
WORK ?= work/demo
PARALLEL := -n auto --dist worksteal
# Two peers run in environments of their own, with packages that are not in $(VENV).
FOREIGN := --ignore=benchmarks/contestants/deepctr.py --ignore=benchmarks/contestants/fuxictr.py

.PHONY: help venv demo test doctest lint format smoke gpu-check docs linkcheck lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /	/' | expand -t 12

venv: ## make .venv with the pinned packages (the first time: one or two minutes)
	@requirements/make_venv.sh default $(VENV)

demo: venv ## the main job end to end: generate, prepare, train, compare
	@$(PYTHON) -m cowclip_merlin.demo --work $(WORK)

test: venv ## the whole test suite, in one process for each core; PYTEST_ARGS="-n 0" for one
	@$(PYTHON) -m pytest $(PARALLEL) --durations=10 $(PYTEST_ARGS)

doctest: venv ## the examples in the docstrings
	@$(PYTHON) -m pytest --doctest-modules cowclip_merlin models workflows experiments examples $(PYTEST_ARGS)
	@$(PYTHON) -m pytest --doctest-modules -o pythonpath=benchmarks $(FOREIGN) benchmarks $(PYTEST_ARGS)

lint: venv ## ruff: rules and format
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

format: venv ## ruff: mend what can be mended
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

smoke: venv ## prepare, 20 steps of all four models, save and load
	@$(PYTHON) tests/smoke.py

gpu-check: ## for a machine with a GPU: tests and speed of the GPU kernels, with PYTHON=...
	@PYTHON=$(if $(filter command line,$(origin PYTHON)),$(PYTHON),python3) benchmarks/gpu_check.sh

docs: ## the documentation as a site with search: build/docs/index.html
	@requirements/make_venv.sh docs $(DOCS_VENV)
	@$(SPHINX) -b html docs build/docs
	@echo "open build/docs/index.html"

linkcheck: ## ask the network about the links that lead out of the documentation
	@requirements/make_venv.sh docs $(DOCS_VENV)
	@$(SPHINX) -b linkcheck docs build/linkcheck

lock: ## resolve requirements/*.in anew into full pins
	@requirements/lock.sh

clean: ## remove what the other targets made
	rm -rf $(VENV) .venv-* work build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
