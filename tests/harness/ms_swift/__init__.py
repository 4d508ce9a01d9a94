"""ms-swift's own Megatron trainer of GRPO on two gloo ranks, in the environment of `make test-frameworks`."""
