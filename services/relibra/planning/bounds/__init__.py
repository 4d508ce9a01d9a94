"""How good a plan can be at best.

`cell` bounds each cell under a given placement. `step` bounds each layer under any placement. `exact` solves small
cells to optimality with a MILP solver; only tests, benchmarks and `relibra plan --exact` use it.
"""
