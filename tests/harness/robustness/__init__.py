"""Services under faults: the world of a test, and the model that the history of its clients must fit."""
