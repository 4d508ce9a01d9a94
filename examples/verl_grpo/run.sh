#!/usr/bin/env bash
# Train as grpo.yaml says. Arguments change its settings, as in: run.sh trainer.total_training_steps=10
set -euo pipefail
exec python -m verl.trainer.main_ppo --config-dir "$(cd "$(dirname "$0")" && pwd)" --config-name grpo "$@"
