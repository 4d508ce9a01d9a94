"""Training ranks with real megatron over gloo: models, plans, layouts of ranks, and the scenarios that they run."""
