"""A training that is killed and started again: its trainer, its launchers, and the points at which it dies."""
