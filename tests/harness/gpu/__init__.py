"""Programs of peer processes that share a CUDA device with a test."""
