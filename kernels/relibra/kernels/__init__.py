"""Data movement for experts and their tokens, with one pure-torch meaning for each operation.

In:   router output, replica shares, expert tensors.
Out:  physical routing, packed buffers.

`reference` defines every operation in torch; it is the CPU path and the oracle of the CUDA kernels.
"""
