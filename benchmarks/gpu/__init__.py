"""Measurements on a CUDA device, and the check that runs them together with the GPU tests."""
