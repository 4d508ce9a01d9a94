"""Where experts live during a step, and how a reorder moves them with their optimizer state."""
