"""Programs of processes that share the CUDA devices with a test."""
