"""A digital twin of what others measured: predictions of published figures, for docs/twin.md."""
