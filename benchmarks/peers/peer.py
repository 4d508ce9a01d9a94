"""A planner that others publish: how it is started, what it answers, and how it becomes a policy of the simulation.

M rows, L layers, E experts, X pieces.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.evaluation.assignment import Assignment
from relibra.evaluation.policies import Decision, Policy, Situation
from relibra.evaluation.renaming import rename
from relibra.planning import Cluster, Model

_Returned = TypeVar("_Returned")


class Decides(Enum):
    """How often a peer decides."""

    EACH_STEP = "once a step"
    EACH_CELL = "in every cell"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a peer decides for a step, and the time of deciding."""

    assignment: Assignment
    cpu_s: float
    """The processor time inside the peer's own code; reading its answer does not count."""


Planner = Callable[[NDArray[np.int64]], Answer]
"""From the loads of a step, `[M, L, E]`, to the peer's answer. It may remember the steps before."""
Reimplementation = Callable[[NDArray[np.int64], Model, Cluster], Assignment]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A published planner."""

    name: str
    checkout: str
    """The folder of its checkout, a name in `checkouts.CHECKOUTS`."""
    file: str
    """The file with its code, below the checkout."""
    decides: Decides
    start: Callable[[Path, Model, Cluster], Planner]
    """Loads the code from the folder of checkouts, for a job."""
    ours: Reimplementation | None = None
    """Our reimplementation of it, if there is one."""

    def absence(self, folder: Path) -> str | None:
        """Return why the peer cannot run from this folder of checkouts, None if it can."""
        if (folder / self.checkout / self.file).is_file():
            return None
        return f"there is no {self.checkout}/{self.file} in the folder of checkouts"

    def digest(self, folder: Path) -> str:
        """Return the SHA-256 of the peer's file."""
        return sha256((folder / self.checkout / self.file).read_bytes()).hexdigest()

    def policy(self, folder: Path, keep: Callable[[Assignment], None] = lambda answer: None) -> Policy:
        """Return the peer as a policy of the simulation. It decides the step before, then the step, with the same code.

        Args:
            folder: the folder of checkouts.
            keep: called with the answer for the step, with the ranks named as the peer named them.
        """

        def decide(situation: Situation) -> Decision:
            planner = self.start(folder, situation.model, situation.cluster)
            before_MLE, now_MLE = situation.previous.load.load_MLE, situation.load_MLE
            before, now = planner(before_MLE).assignment, planner(now_MLE)
            require_complete(self.name, now.assignment, now_MLE)
            keep(now.assignment)
            return Decision(
                assignment=rename(now.assignment, before.home_LE, situation.cluster),
                load=situation.workload.load,
                previous_home_LE=before.home_LE,
                decide_time_s=now.cpu_s,
            )

        return decide


def on_cpu_clock(call: Callable[[], _Returned]) -> tuple[_Returned, float]:
    """Return what a call returns, and the processor time that it took."""
    began_s = time.process_time()
    returned = call()
    return returned, time.process_time() - began_s


def clocked(policy: Policy) -> Policy:
    """Return a policy of the simulation that counts processor time, as peers do, and not the step before."""

    def decide(situation: Situation) -> Decision:
        _ = situation.previous_home_LE
        decision, cpu_s = on_cpu_clock(lambda: policy(situation))
        return replace(decision, decide_time_s=cpu_s)

    return decide


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
