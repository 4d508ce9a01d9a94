"""The homes of experts during a step, and the reorder that moves experts with their optimizer state."""
