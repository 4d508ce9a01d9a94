"""Weights that leave the trainer under names by place, renamed to logical experts while the experts stay."""

from relibra.plugins.logical_export import logical

__all__ = ["logical"]
