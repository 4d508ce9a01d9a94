# Everything runs in .venv, which `make` builds on first use from Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test test-robustness lint proto proto-check gpu-check bench evaluation clean

demo: $(READY)  ## one real MoE RL job, plain and balanced, on this machine
	$(BIN)/relibra demo

test: $(READY)  ## everything that needs no GPU
	$(BIN)/pytest

test-robustness: $(READY)  ## every fault of tests/robustness, again and again, and a table of what held
	RELIBRA_ROBUSTNESS_ROUNDS=5 $(BIN)/pytest -m robustness tests/robustness

lint: $(READY) proto-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

proto: $(READY)  ## regenerate proto/relibra/v1 from its .proto files
	$(BIN)/python proto/generate.py

proto-check: $(READY)
	$(BIN)/python proto/generate.py --check

# With PYTHON itself, which must have torch with CUDA and pytest, and not .venv: nothing is fetched.
gpu-check:  ## all tests and benchmarks that need a CUDA device
	PYTHONPATH=services:trainer_agent:kernels:proto $(PYTHON) benchmarks/gpu_check.py

bench: $(READY)  ## figures of docs/benchmarks.md; about five minutes, needs RELIBRA_TRACES
	for each in imbalance scale gap pack crossing figures; do $(BIN)/python benchmarks/$$each.py || exit 1; done

evaluation: $(READY)  ## figures and tables of docs/evaluation.md; ten to fifteen minutes on two cores; needs RELIBRA_TRACES
	for each in evaluation evaluation_tables evaluation_figures; do $(BIN)/python benchmarks/$$each.py || exit 1; done

clean:
	rm -rf .venv .venv-proto

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,dev]'
	touch $@
