"""Published ways of balancing, reimplemented faithfully; all get the same loads and slots.

In:   loads `[M, L, E]`, the model, the cluster.
Out:  one `Assignment` from each baseline.
"""
