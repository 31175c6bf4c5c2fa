# Needs only Python 3.11, 3.10 or 3.12: every target makes its own environment.
VENV ?= .venv
PYTHON := $(VENV)/bin/python
CURRENT_VENV ?= .venv-current
DOCS_VENV ?= .venv-docs
FLINK_VENV ?= .venv-flink
TRITON_VENV ?= .venv-triton
SPHINX := $(DOCS_VENV)/bin/python -m sphinx -q -E -W -n --keep-going -d build/doctrees
WORK ?= work/demo
ONLINE_WORK ?= work/online-demo
# Every process of a target reads the compiled modules of the one before.
unexport PYTHONDONTWRITEBYTECODE
PARALLEL := -n auto --dist worksteal
# What `make test` runs: the markers are described in pyproject.toml.
QUICK := quick or not (system or thorough or gpu)
FULL := --hypothesis-profile=full
# What needs neither Keras 2 nor Merlin. Each front end has a process of its own: PyTorch's compiler
# crashes in one that has loaded TensorFlow.
CORE := $(addprefix tests/kernels/test_,compiled.py cupy.py kernels.py replays.py) \
	$(addprefix tests/test_,batch.py metrics.py scaling.py)
# These run in separate environments, with packages that are not in $(VENV).
FOREIGN := $(foreach name,on_keras fuxictr hugectr triton_client,--ignore=benchmarks/contestants/$(name).py) \
	--ignore=examples/torch_deepfm.py --ignore=examples/keras3_deepfm.py

.PHONY: help venv demo online-demo test test-rest test-all doctest lint format smoke golden mutants gpu-check \
        current-check current-examples flink-check triton-check docs linkcheck lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /	/' | expand -t 12

venv: ## create .venv with the pinned packages (one or two minutes at the first call)
	@requirements/make_venv.sh default $(VENV)

demo: venv ## run the main job end to end: generate, prepare, train, compare
	@$(PYTHON) -m cowclip_merlin.demo --work $(WORK)

online-demo: venv ## run all parts of online training for three minutes: stream, joiner, trainer, servers
	@$(PYTHON) -m cowclip_merlin online demo --work $(ONLINE_WORK) $(DEMO_ARGS)

test: venv ## run the tests that cover every part, in some minutes; PYTEST_ARGS="-n 0" for one process
	@$(PYTHON) -m pytest $(PARALLEL) -m "$(QUICK)" --durations=10 $(PYTEST_ARGS)

test-rest: venv ## run the tests that `make test` leaves out
	@$(PYTHON) -m pytest $(PARALLEL) -m "not ($(QUICK))" $(FULL) --durations=10 $(PYTEST_ARGS)

test-all: venv ## run all tests, with all generated examples
	@$(PYTHON) -m pytest $(PARALLEL) $(FULL) --durations=10 $(PYTEST_ARGS)

doctest: venv ## run the examples in the docstrings
	@$(PYTHON) -m pytest --doctest-modules -o pythonpath="examples benchmarks" $(FOREIGN) \
		cowclip_merlin models workflows experiments examples benchmarks $(PYTEST_ARGS)

lint: venv ## check rules and format with ruff
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

format: venv ## fix rules and format with ruff, where it can
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

smoke: venv ## prepare, train all five models for 20 steps, save and load
	@$(PYTHON) tests/smoke.py

golden: venv ## compare weights, prepared folders and a stream's files with tests/golden/golden.json
	@$(PYTHON) tests/golden/record.py

mutants: venv ## run N mutants of tests/mutants/mutants.csv again: are those killed that were?
	@$(PYTHON) tests/mutants/mutate.py check --number $(or $(N),20) --seed $(or $(SEED),0)

gpu-check: ## test and time the GPU kernels on a machine with a GPU, with PYTHON=...
	@PYTHON=$(if $(filter command line,$(origin PYTHON)),$(PYTHON),python3) benchmarks/gpu_check.sh

current-check: ## test core, PyTorch and Keras 3 on Python 3.13 and NumPy 2 (7 GB, some minutes)
	@requirements/make_venv.sh current $(CURRENT_VENV)
	@set -e; for each in "$(CORE)" "tests/pytorch tests/contract/test_torch.py" \
			"tests/keras3 tests/contract/test_keras_3.py"; do \
		$(CURRENT_VENV)/bin/pytest $$each $(PYTEST_ARGS); done
	@set -e; for each in scaling metrics.auc torch keras3; do \
		$(CURRENT_VENV)/bin/pytest --doctest-modules -o addopts=--import-mode=importlib \
			--pyargs cowclip_merlin.$$each; done

current-examples: venv ## run the examples and the benchmark of optimizers that need PyTorch or Keras 3
	@requirements/make_venv.sh current $(CURRENT_VENV)
	@CURRENT_PYTHON=$(abspath $(CURRENT_VENV))/bin/python $(PYTHON) -m pytest tests/examples/test_prepared_deepfm.py \
		"tests/benchmarks/test_small_runs.py::test_a_small_run_of_processes[optimizers]" $(PYTEST_ARGS)

flink-check: venv ## compare the joins by SQLite, Flink and pandas; needs Java 17 (some minutes)
	@requirements/make_venv.sh flink $(FLINK_VENV)
	@FLINK_PYTHON=$(FLINK_VENV)/bin/python $(PYTHON) -m pytest tests/online/joining/test_flink.py $(PYTEST_ARGS)

triton-check: venv ## serve an exported model in NVIDIA Triton on this machine, check and time it
	@requirements/make_venv.sh triton $(TRITON_VENV)
	@TRITON_PYTHON=$(TRITON_VENV)/bin/python $(PYTHON) -m pytest tests/benchmarks/test_small_runs.py -k triton $(PYTEST_ARGS)
	@$(PYTHON) benchmarks/serving.py triton --triton-python $(TRITON_VENV)/bin/python $(TRITON_ARGS)

docs: ## build the documentation as a site with search: build/docs/index.html
	@requirements/make_venv.sh docs $(DOCS_VENV)
	@$(SPHINX) -b html docs build/docs
	@echo "open build/docs/index.html"

linkcheck: ## check the external links of the documentation over the network
	@requirements/make_venv.sh docs $(DOCS_VENV)
	@$(SPHINX) -b linkcheck docs build/linkcheck

lock: ## resolve requirements/*.in again into full pins
	@requirements/lock.sh

clean: ## remove the files of the other targets
	for each in $(VENV) .venv-*; do if [ -f "$$each/.stamp" ]; then rm -rf "$$each"; fi; done
	rm -rf work build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
