"""AReaL's own code, in the environment of `make test-frameworks`."""
