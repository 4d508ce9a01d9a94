#!/usr/bin/env bash
# run.sh [STEPS]: train on NUM_RANKS ranks of this machine, by default 2, with the planner that RELIBRA_PLANNER names.
set -euo pipefail
cd "$(dirname "$0")"
export RELIBRA_PLANNER=${RELIBRA_PLANNER:-127.0.0.1:7420} RELIBRA_JOB=${RELIBRA_JOB:-my-job}
# Plans every step. A model as small as this one gains no time, so relibra would soon let its steps run plain.
export RELIBRA_GUARD=${RELIBRA_GUARD:-off}
# Hides what torch and megatron-core say of each other's versions.
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
exec python -m torch.distributed.run --standalone --nproc-per-node "${NUM_RANKS:-2}" train.py "$@"
