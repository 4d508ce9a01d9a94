"""NeMo-RL's own Megatron policy worker, from a checkout, on two gloo ranks."""
