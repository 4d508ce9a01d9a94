# Overrides of SkyRL on one command line.
MEGATRON_EP=8
OFFLOAD=false
uv run --isolated --extra megatron -m skyrl.train.entrypoints.main_base \
  trainer.strategy=megatron \
  trainer.policy.model.path="Qwen/Qwen3-30B-A3B" \
  trainer.policy.model.lora.rank=32 \
  trainer.policy.megatron_config.expert_model_parallel_size=$MEGATRON_EP \
  trainer.policy.megatron_config.expert_tensor_parallel_size=1 \
  trainer.policy.megatron_config.moe_enable_routing_replay=true \
  trainer.policy.megatron_config.optimizer_config_kwargs.optimizer_cpu_offload=$OFFLOAD \
  trainer.policy.megatron_config.transformer_config_kwargs.recompute_granularity=selective \
  trainer.policy.megatron_config.transformer_config_kwargs.delay_wgrad_compute=true $@
