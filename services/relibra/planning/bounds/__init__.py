"""How good a plan can be at best.

`cell` bounds each cell under a given placement. `step` bounds each layer under any placement.
"""
