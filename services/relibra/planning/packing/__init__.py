"""Which sequences share a micro-batch, and on which source rank each one starts. Optional, runs before `solve`.

`pack` is the entry point, offline and while a driver waits. `search` fits sequences to a placement, `judge` says what a
schedule costs, and `length_balance` provides the schedule that packing begins from offline.
"""
