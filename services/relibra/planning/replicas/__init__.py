"""Which experts get copies inside their node, and how their tokens are split.

`replicate` runs all cells; `node_replicas` solves one node of one cell; `split` turns quotas into one share per source
rank.
"""
