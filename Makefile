# Everything runs in .venv, which `make` builds on first use from Python 3.11 or newer, with the packages that the target needs.
# Frameworks run on Python 3.12, so it comes first where it works.
PYTHON ?= $(shell for each in python3.12 python3.11 python3; do $$each -c 'import ensurepip' 2> /dev/null && echo $$each && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready-for-
# Packages arrive for minutes, so people see which; pip's further words about them are indented.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
install = $(BIN)/python -m pip --disable-pip-version-check install --no-compile --progress-bar off --constraint constraints.txt --editable '.[$(1)]' \
  | sed --unbuffered '/^ \|already satisfied/d'
FRAMEWORKS_PYTHON ?= $(PYTHON)
# Ray starts no worker from a path with a space, so a checkout in such a path needs this environment elsewhere.
FRAMEWORKS_VENV ?= .venv-frameworks
FRAMEWORKS_READY := $(FRAMEWORKS_VENV)/ready
WHOLE_JOB_VENV ?= .venv-whole-job
WHOLE_JOB_READY := $(WHOLE_JOB_VENV)/ready
# Tests start hundreds of processes, and each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-rollout test test-all test-containers test-megatron test-frameworks test-rollout releases-before canary test-robustness test-long docs audit lint proto proto-check gpu-bundle gpu-check bench evaluation clean

demo: $(READY)all  ## run a real MoE RL job, plain and balanced, on this machine; ARGS=--keep leaves its pages up
	$(BIN)/relibra demo $(ARGS)

demo-rollout: $(READY)all $(WHOLE_JOB_READY)  ## run 20 steps of a whole job of verl with vLLM, balanced and plain, on this machine, and leave its pages up; fetches 1.5 GB, once
	$(BIN)/python -m benchmarks.whole_job build/whole-job/$$(date +%Y%m%d-%H%M%S) --cpu --python "$(WHOLE_JOB_VENV)/bin/python" --steps 20 --set +relibra.guard=false --keep

# Tests wait for half of their time, so four processes keep two cores busy.
test: $(READY)test  ## prove every promise once, without a GPU and on two cores
	$(BIN)/pytest --numprocesses 4 --ignore tests/frameworks --ignore tests/whole_job -m 'not long'

test-all: $(READY)dev build/programs/helm  ## run every test that needs no GPU, also those that repeat at length what `make test` shows once
	$(BIN)/pytest --numprocesses 3 --ignore tests/frameworks --ignore tests/whole_job

test-megatron: $(READY)test  ## run the tests that train inside megatron-core: with VENV and PYTHON, on another Python and its megatron-core
	$(BIN)/pytest --numprocesses 3 tests/agent tests/distributed tests/plugins

test-containers: $(READY)test  ## run the Compose file on a Docker Engine; as root on Debian 12 it brings its own; up to six minutes
	tests/containers/run.sh build/containers $(BIN)/pytest --numprocesses 0 --capture no

test-frameworks: $(READY)test $(FRAMEWORKS_READY)  ## run the plug-ins inside the frameworks themselves, on the CPU; fetches 0.5 GB or more, once
	RELIBRA_FRAMEWORKS_VENV='$(FRAMEWORKS_VENV)' $(BIN)/pytest --numprocesses 0 tests/frameworks

test-rollout: $(READY)test $(WHOLE_JOB_READY)  ## run a whole job of verl with a real vLLM, on the CPU; fetches 1 GB more than test-frameworks, once; EVERY=1 runs eight more jobs, and two of SkyRL
	RELIBRA_WHOLE_JOB_VENV='$(WHOLE_JOB_VENV)' $(BIN)/pytest --numprocesses 0 $(if $(EVERY),,-m 'not long') tests/whole_job

releases-before: $(READY)test $(FRAMEWORKS_READY)  ## run the plug-ins on the release before that of test-frameworks, where the index has one that is not refused
	RELIBRA_FRAMEWORKS_VENV='$(FRAMEWORKS_VENV)' PYTHONPATH=tests $(BIN)/python -m harness.canary --before '$(or $(DIR),build/before)'

canary: $(READY)test $(FRAMEWORKS_READY)  ## run every plug-in on the main branch of its framework and say what broke; DIR=build/main gets the checkouts
	RELIBRA_FRAMEWORKS_VENV='$(FRAMEWORKS_VENV)' PYTHONPATH=tests $(BIN)/python -m harness.canary '$(or $(DIR),build/main)'

test-robustness: $(READY)test  ## inject every fault five times, and once each on a Cluster and behind Sentinels; measure waits beside attacks
	RELIBRA_ROBUSTNESS_ROUNDS=5 RELIBRA_ROBUSTNESS_REDIS=server,cluster,sentinel $(BIN)/pytest -m robustness tests/robustness

test-long: $(READY)test  ## run 100 kill cycles, 20 kills of a trainer, 10,000 steps and 100,000 malformed messages; about 20 minutes
	RELIBRA_KILL_CYCLES=100 RELIBRA_TRAINER_KILLS=20 RELIBRA_SOAK_STEPS=10000 RELIBRA_ROBUSTNESS_RESULTS=benchmarks/results/robustness-long.json \
	  $(BIN)/pytest -m robustness tests/robustness/test_kill_cycles.py \
	  tests/robustness/test_killed_training.py tests/robustness/test_soak.py
	RELIBRA_FUZZ_CASES=7200 $(BIN)/pytest tests/wire/test_fuzz.py

docs: $(READY)docs  ## build the pages and the API reference as a site: build/docs/index.html
	$(BIN)/sphinx-build -W -n --keep-going -q docs build/docs

audit:  ## look up known vulnerabilities in the versions of constraints.txt; asks api.osv.dev
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet pip-audit==2.10.1
	.venv-audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict --vulnerability-service osv

.PHONY: lock sbom dist images
lock:  ## resolve deploy/locks anew, from pyproject.toml and constraints.txt
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet uv==0.13.9
	.venv-lock/bin/python deploy/lock.py

sbom:  ## write the bills of materials of the images, and of what a trainer installs, into build/sbom (CycloneDX)
	mkdir -p build/sbom
	for each in status services demo trainer; do $(PYTHON) deploy/sbom.py $$each > build/sbom/$$each.cdx.json || exit 1; done

images: sbom  ## build the images under the tags of docker-compose.yml, and the bill of materials of each; needs Docker
	docker compose --profile '*' build

dist:  ## build wheel and sdist of the last commit into dist/, twice, and compare; needs a package index once
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python -m pip install --quiet --require-hashes --requirement deploy/locks/release.txt
	deploy/dist.sh .venv-dist/bin

lint: $(READY)lint proto-check  ## check style, types, imports and generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

proto: $(READY)lint  ## regenerate proto/relibra/v1 from its .proto files
	$(BIN)/python proto/generate.py

proto-check: $(READY)lint
	$(BIN)/python proto/generate.py --check

gpu-bundle: $(READY)dev  ## build build/gpu-bundle: all that gpu-check needs on a machine with CUDA's torch and no network
	$(BIN)/python -m benchmarks.gpu.bundle $(ARGS)

# This uses PYTHON and not .venv, because it fetches nothing. PYTHON must have torch with CUDA. Wheels of a bundle serve
# where PYTHON lacks a package.
gpu-check:  ## run all tests and benchmarks that need a CUDA device; ARGS="--stages=kernels,ranks --budget-s=540" runs a part
	PYTHONPATH=services:trainer_agent:kernels:proto:tests $(PYTHON) -m benchmarks.gpu \
	  $(if $(wildcard build/gpu-bundle/wheels),--wheels build/gpu-bundle/wheels) $(ARGS)

bench: $(READY)figures  ## measure and draw docs/benchmarks.md; about five minutes, needs RELIBRA_TRACES
	for each in imbalance scale gap placement_gap slots figures balance; do PYTHONPATH=tests $(BIN)/python -m benchmarks.$$each || exit 1; done

evaluation: $(READY)figures  ## compute every figure of the evaluation, twin and peers again; without PEERS=DIR, OLMOE=DIR, RELIBRA_TRACES or an idle machine, says what it leaves out
	$(BIN)/python -m benchmarks.pages $(if $(PEERS),--peers '$(PEERS)') $(if $(OLMOE),--olmoe '$(OLMOE)')

clean:
	rm -rf .venv .venv-3.* .venv-audit .venv-dist .venv-lock .venv-frameworks .venv-proto

# The solver is compiled while the larger packages arrive. Torch's own tests are 80 MB that nobody runs here, and Python compiles
# the modules that are imported instead of all.
$(READY)all: pyproject.toml constraints.txt
	@echo "installing the packages of the demo into $(VENV), once: 1.0 GB, and more with the CUDA build of torch"
	$(PYTHON) -m venv $(VENV)
	$(call install,planner)
	$(BIN)/python -m relibra.planner.solve.machine_code & $(call install,all); installed=$$?; wait; exit $$installed
	rm -rf $(VENV)/lib/python*/site-packages/torch/test
	$(BIN)/python -c 'import relibra.demo.trainer'
	touch $@

$(READY)%: $(READY)all
	@echo "installing the packages of the extra \"$*\" into $(VENV), once"
	$(call install,$*)
	touch $@

build/programs/helm: deploy/helm/programs.py $(READY)all
	$(BIN)/python -m deploy.helm.programs build/programs

$(FRAMEWORKS_READY): tests/frameworks/environment.sh tests/frameworks/constraints.txt
	@echo "installing verl, SkyRL, AReaL, ms-swift and what they need on the CPU into $(FRAMEWORKS_VENV), once: 2 GB on disk, and more with the CUDA build of torch"
	tests/frameworks/environment.sh $(FRAMEWORKS_PYTHON) '$(FRAMEWORKS_VENV)'

$(WHOLE_JOB_READY): tests/whole_job/environment.sh tests/whole_job/constraints.txt $(FRAMEWORKS_READY)
	@echo "installing vLLM for the CPU and what it needs beside them into $(WHOLE_JOB_VENV), once: 1 GB on disk"
	tests/whole_job/environment.sh $(FRAMEWORKS_PYTHON) '$(FRAMEWORKS_VENV)' '$(WHOLE_JOB_VENV)'
