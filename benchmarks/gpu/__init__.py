"""The check of a machine with a GPU, in stages: what can be learned there in the minutes that one has it.

In:   a CUDA device with torch, or `--rehearse` for what runs without one.
Out:  a log of every stage, and a summary as text and as JSON.

`stages` says what runs, how long, and how it ended; `check` runs it. `probe`, `measure` and `hot_path` are stages that
exist for the check alone. `bundle` packs everything for a machine without a network.
"""
