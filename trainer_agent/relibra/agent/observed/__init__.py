"""Observing a job: what its routers choose, counted without a collective, and reported. Nothing else is touched."""
