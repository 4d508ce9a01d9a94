"""slime's own groups of training processes, which Ray starts, in the environment of `make test-frameworks`."""
