"""Where experts live: the home rank of every expert in every layer, chosen once per step.

`reorder` decides layer by layer whether a better placement is worth its moves. It starts from the placements of
`partition` and improves them with `swap_search`.
"""
