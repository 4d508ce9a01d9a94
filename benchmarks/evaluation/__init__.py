"""The simulated training steps behind docs/evaluation.md: cases, tables and figures."""
