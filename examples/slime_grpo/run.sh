#!/usr/bin/env bash
# Train Qwen3-30B-A3B with GRPO on DAPO-Math-17k, on one node of eight GPUs. The marked lines are relibra's; the others are slime's own.
# Arguments change settings, as in: run.sh --num-rollout 10
set -euo pipefail
slime=${SLIME_DIR:-/root/slime}
data=${DATA_DIR:-/root}
source "$slime/scripts/models/qwen3-30B-A3B.sh" # MODEL_ARGS

arguments=(
  --custom-megatron-init-path relibra.integrations.slime.init # relibra
  --train-env-vars '{"RELIBRA_PLANNER": "embedded"}' # relibra: a planner of the job's own, or the address of a service as host:port
  --use-rollout-routing-replay # routing that is known before the step makes the plans fit better

  --hf-checkpoint "$data/Qwen3-30B-A3B"
  --ref-load "$data/Qwen3-30B-A3B_torch_dist"
  --load "$data/Qwen3-30B-A3B_slime"
  --save "$data/Qwen3-30B-A3B_slime"
  --save-interval 20

  --prompt-data "$data/dapo-math-17k/dapo-math-17k.jsonl"
  --input-key prompt
  --label-key label
  --apply-chat-template
  --rollout-shuffle
  --rm-type deepscaler
  --num-rollout 200
  --rollout-batch-size 32
  --n-samples-per-prompt 8
  --rollout-max-response-len 8192
  --rollout-temperature 1
  --global-batch-size 256
  --balance-data

  --advantage-estimator grpo
  --eps-clip 0.2
  --eps-clip-high 0.28

  --actor-num-nodes 1
  --actor-num-gpus-per-node 8
  --colocate
  --rollout-num-gpus-per-engine 8
  --sglang-mem-fraction-static 0.7

  --tensor-model-parallel-size 4
  --sequence-parallel
  --expert-model-parallel-size 8
  --expert-tensor-parallel-size 1
  --recompute-granularity full
  --recompute-method uniform
  --recompute-num-layers 1
  --use-dynamic-batch-size
  --max-tokens-per-gpu 20480

  --optimizer adam
  --lr 1e-6
  --lr-decay-style constant
  --weight-decay 0.1
  --optimizer-cpu-offload
  --overlap-cpu-optimizer-d2h-h2d
  --use-precision-aware-optimizer

  --attention-dropout 0.0
  --hidden-dropout 0.0
  --accumulate-allreduce-grads-in-fp32
  --attention-softmax-in-fp32
  --attention-backend flash
)

exec ray job submit --address http://127.0.0.1:8265 \
  --runtime-env-json '{"env_vars": {"PYTHONPATH": "/root/Megatron-LM", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}}' \
  -- python3 "$slime/train.py" "${MODEL_ARGS[@]}" "${arguments[@]}" "$@"
