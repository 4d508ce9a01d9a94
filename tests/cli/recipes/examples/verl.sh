#!/usr/bin/env bash
# Overrides of verl in arrays, and another branch for other hardware.
set -xeuo pipefail
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
EP=${EP:-8}
ACTOR=(
    actor_rollout_ref.model.path="${MODEL_PATH:-deepseek-ai/DeepSeek-V3}"
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=${EP}
    actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1
    actor_rollout_ref.actor.megatron.router_replay.mode=R3
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_permute_fusion=True
    +actor_rollout_ref.actor.megatron.override_transformer_config.delay_wgrad_compute=True
    +actor_rollout_ref.actor.optim.override_optimizer_config.use_precision_aware_optimizer=True
)
case "${DEVICE}" in
    gpu) ACTOR+=(actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4) ;;
    npu) ACTOR+=(actor_rollout_ref.actor.megatron.tensor_model_parallel_size=16) ;;
esac
python3 -m verl.trainer.main_ppo model_engine=megatron "${ACTOR[@]}" "$@"
