"""Whole jobs on the CPU: their model, their engine, their command lines, and the lines that they write."""
