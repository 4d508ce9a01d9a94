"""One folder with everything that the check of a GPU needs on a machine that has torch with CUDA and no network.

`wheels` decides which packages travel and which of them a machine lacks; `build` makes the folder.
"""
