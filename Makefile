# Everything runs in .venv, which `make` builds on first use from Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test lint proto proto-check gpu-check bench clean

demo: $(READY)  ## one real MoE RL job, plain and balanced, on this machine
	$(BIN)/relibra demo

test: $(READY)  ## everything that needs no GPU
	$(BIN)/pytest

lint: $(READY) proto-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

proto: $(READY)  ## regenerate proto/relibra/v1 from its .proto files
	$(BIN)/python proto/generate.py

proto-check: $(READY)
	$(BIN)/python proto/generate.py --check

gpu-check: $(READY)  ## all tests and benchmarks that need a CUDA device
	$(BIN)/pytest -m gpu

bench: $(READY)  ## figures of docs/benchmarks.md; about five minutes, needs RELIBRA_TRACES
	for each in imbalance scale gap pack crossing figures; do $(BIN)/python benchmarks/$$each.py || exit 1; done

clean:
	rm -rf .venv .venv-proto

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,dev]'
	touch $@
