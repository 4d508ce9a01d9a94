"""Megatron-Bridge's own LoRA around grouped experts, on four gloo ranks."""
