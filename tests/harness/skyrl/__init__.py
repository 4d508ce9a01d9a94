"""SkyRL's own Megatron policy worker on two gloo ranks, in the environment of `make test-frameworks`."""
