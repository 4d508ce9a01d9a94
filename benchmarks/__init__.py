"""The measurements behind the figures of the documentation.

Run one of them from the repository root with `python -m benchmarks.<name>`.
"""
