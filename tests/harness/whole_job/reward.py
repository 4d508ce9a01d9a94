"""A reward that a model so small can learn: the share of digits."""

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """Return the reward of a response, with verl's own arguments."""
    return sum(character.isdigit() for character in solution_str) / max(1, len(solution_str))
