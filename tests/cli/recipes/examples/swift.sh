NPROC_PER_NODE=8 \
megatron rlhf \
    --rlhf_type grpo \
    --model Qwen/Qwen3-30B-A3B \
    --expert_model_parallel_size 8 \
    --moe_shared_expert_overlap true \
    --recompute_granularity none \
    --delay_wgrad_compute true \
    --tuner_type lora \
    --target_modules all-linear
