"""How one layer runs one micro-batch: token remapping, replica weights in, gradients out."""
