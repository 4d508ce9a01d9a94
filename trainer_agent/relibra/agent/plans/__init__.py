"""The plan of a step: fetch it, agree on it with all ranks, and report its execution."""
