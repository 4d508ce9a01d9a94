"""Which plan a step runs under: fetch it, agree on it with all ranks, and report what became of it."""
