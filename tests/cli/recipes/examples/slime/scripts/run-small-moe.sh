#!/bin/bash
# A launcher in the way of slime's `scripts/`: arrays of arguments, the model in a file of its own.
pkill -9 sglang
set -ex
NVLINK_COUNT=$(nvidia-smi topo -m 2>/dev/null | grep -o 'NV[0-9]' | wc -l)
if [ "$NVLINK_COUNT" -gt 0 ]; then HAS_NVLINK=1; else HAS_NVLINK=0; fi

SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/small-moe.sh"

CKPT_ARGS=(--hf-checkpoint $BASE_DIR/GLM-4.5-Air --ref-load $BASE_DIR/GLM-4.5-Air_torch_dist)
PERF_ARGS=(
   --tensor-model-parallel-size ${TP:-2}
   --expert-model-parallel-size 8
   --expert-tensor-parallel-size 1
   --recompute-granularity full
   # --fp8-format e4m3
)
OPTIMIZER_ARGS=(
   --optimizer adam
   --optimizer-cpu-offload
)
MISC_ARGS=(
   --moe-token-dispatcher-type flex
   --moe-enable-deepep
   --use-megatron-fsdp
)
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json="{\"env_vars\": {\"NCCL_NVLS_ENABLE\": \"${HAS_NVLINK}\"}}" \
   -- python3 slime/train.py --colocate \
   ${MODEL_ARGS[@]} ${CKPT_ARGS[@]} ${PERF_ARGS[@]} ${OPTIMIZER_ARGS[@]} ${MISC_ARGS[@]}
