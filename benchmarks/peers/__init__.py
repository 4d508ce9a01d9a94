"""Planners that others publish, run from their own checkouts on our loads and judged by our simulation.

In:   a folder of checkouts (`checkouts`), the recorded traces.
Out:  `results/peers.json` and the tables of docs/peers.md.
"""
