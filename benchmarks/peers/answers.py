"""What a peer decides for a step, and what can be said of it without a model of time.

M rows, L layers, E experts, X pieces.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.evaluation.assignment import Assignment


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a peer decides for a step, and the time of deciding."""

    assignment: Assignment
    cpu_s: float
    """The processor time inside the peer's own code; reading its answer does not count."""


def require_complete(name: str, assignment: Assignment, load_MLE: NDArray[np.integer]) -> None:
    """Check that an answer computes every token once.

    Raises:
        InvalidInput: it does not; what a model of time says about it would mean nothing.
    """
    computed_MLE = np.zeros(load_MLE.shape, dtype=np.int64)
    np.add.at(computed_MLE, tuple(assignment.index_Q4[:, :3].T), assignment.tokens_Q)
    wrong_X3 = np.argwhere(computed_MLE != load_MLE)
    if len(wrong_X3):
        row, layer, expert = wrong_X3[0]
        raise InvalidInput.of(
            f"answer of {name}",
            expected=f"{load_MLE[row, layer, expert]} tokens of expert {expert} in row {row}, layer {layer}",
            got=int(computed_MLE[row, layer, expert]),
        )


def same_cells(one: Assignment, other: Assignment) -> float:
    """Return the share of cells in which both put the same tokens of every expert on the same ranks."""
    pieces_X5 = np.concatenate([np.column_stack([each.index_Q4, each.tokens_Q]) for each in (one, other)])
    piece_X5, count_X = np.unique(pieces_X5, axis=0, return_counts=True)
    num_differing = len(np.unique(piece_X5[count_X == 1][:, :2], axis=0))
    return 1 - num_differing / (one.num_rows * len(one.home_LE))
