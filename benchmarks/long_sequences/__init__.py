"""Routing of sequences of thousands of tokens, from a small model trained here, and what it does to balance."""
