"""verl's own Megatron engine on two gloo ranks, in the environment of `make test-frameworks`."""
