# Each target makes the virtual environment once and uses it from then on; it is made anew when pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
TF_VENV ?= .venv-tf
PEERS_VENV ?= .venv-peers
TORCH ?= torch==2.13.0
# Without their dependencies, which would replace the CPU build of torch; tests/support/_torchvision.py says why apart.
VISION ?= torchvision==0.29.* fastai==2.8.*
TENSORFLOW ?= tensorflow-cpu==2.21.*

BIN := $(VENV)/bin
READY := $(VENV)/.ready
TF_READY := $(TF_VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-full test-gpu test-tf compose-test lint bench bench-peers docs clean server
# A target that fails half-way must not look finished.
.DELETE_ON_ERROR:

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: server ## pack real JPEGs, train a small network, and show the same samples out of LMDB, HDF5 and MongoDB
	$(BIN)/storeds demo

test: server ## run every test, a real MongoDB server included
	@bash scripts/check_system.sh tools
	$(BIN)/python -m pytest

test-full: server ## the same with 1,000 damaged stores of each file format, which takes half an hour
	@bash scripts/check_system.sh tools
	STOREDS_TEST_FULL=1 $(BIN)/python -m pytest --timeout 3600

test-gpu: $(READY) ## run the tests marked cuda, then measure how copies to the GPU overlap with training steps
	$(BIN)/python -c "import torch; torch.cuda.is_available() or exit('make test-gpu needs a GPU: PyTorch sees no CUDA device')"
	$(BIN)/python -m pytest -m cuda
	$(BIN)/python -m benchmarks.device

test-tf: $(TF_READY) ## run the tests of storeds.loaders.tf with real TensorFlow, in a virtual environment of its own
	$(TF_VENV)/bin/python -m pytest tests_tf

compose-test: ## run tests/integration and a training in Docker, against a replica set with users; see docs/compose.md
	@bash docker/compose_test.sh

lint: $(READY) ## ruff (rules and format), mypy --strict, the order of the packages, and Markdown wrapped at 100 columns
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/mdformat --check $$(git ls-files '*.md')

bench: server ## measure reading, opening, packing, triage and shuffling; tables here, JSON in build/bench
	$(BIN)/python -m benchmarks.reading
	$(BIN)/python -m benchmarks.arrays
	$(BIN)/python -m benchmarks.loaders
	$(BIN)/python -m benchmarks.opening
	$(BIN)/python -m benchmarks.packing
	$(BIN)/python -m benchmarks.jpeg
	$(BIN)/python -m benchmarks.silent
	$(BIN)/python -m benchmarks.shuffling
	$(BIN)/python -m benchmarks.videos
	$(BIN)/python -m benchmarks.foreign_lmdb
	$(BIN)/python -m benchmarks.foreign_hdf5
	$(MAKE) bench-peers

bench-peers: server ## storeds beside its peers on the same photographs; benchmarks/README.md says how to install them
	COLUMNS=150 $(BIN)/python -m benchmarks.peers --python $(firstword $(wildcard $(PEERS_VENV)/bin/python) $(BIN)/python)

docs: server ## build the documentation into build/docs, check its links, and run its examples
	$(BIN)/python -m sphinx -W --keep-going -n -E -q -d build/doctrees docs build/docs
	$(BIN)/python scripts/check_docs.py

clean: ## remove the virtual environment and everything that was built
	rm -rf $(VENV) $(TF_VENV) $(PEERS_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-work
	find . -name __pycache__ -prune -exec rm -rf {} +

# torch first and pinned, so that pip does not look for another one while it resolves the rest.
$(READY): pyproject.toml
	@bash scripts/check_system.sh python $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[dev,demo]'
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/vision $(VISION)
	@touch $@

# Apart, because TensorFlow holds back h5py and others.
$(TF_READY): pyproject.toml
	@bash scripts/check_system.sh python $(PYTHON)
	$(PYTHON) -m venv $(TF_VENV)
	$(TF_VENV)/bin/python -m pip install --quiet '$(TORCH)'
	$(TF_VENV)/bin/python -m pip install --quiet '$(TENSORFLOW)' --editable . 'pytest>=8.3' 'pytest-timeout>=2.3'
	@touch $@

server: $(READY)
	@bash scripts/check_system.sh server $(BIN)/python
