"""Which sequences share a micro-batch, and on which source rank each one starts. Optional, runs before `solve`.

`pack` is the entry point. `rows` groups sequences into micro-batches, `sources` assigns them to source ranks, and
`length_balance` provides the token-balanced schedule that packing starts from.
"""
