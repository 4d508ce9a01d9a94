"""Which sequences share a micro-batch, and the EP rank each one's tokens start from.

S sequences, L layers, E experts.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.job import Cluster

_MAX_INT32 = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The micro-batch, source rank and EP group of every sequence of a step; int32 `[S]` each.

    A *row* is one micro-batch of one EP group: `row = ep_group * num_micro_batches + micro_batch`. Loads and plans have
    one row axis; for a single group, rows are micro-batches.
    """

    micro_batch_S: NDArray[np.int32]
    source_rank_S: NDArray[np.int32]
    ep_group_S: NDArray[np.int32]
    is_forward_only: bool = False
    """Whether no backward follows, as in a pass over log-probabilities that is a step of its own. Nothing is kept."""

    def __post_init__(self) -> None:
        for field in ("micro_batch_S", "source_rank_S", "ep_group_S"):
            value_S = np.asarray(getattr(self, field))
            if value_S.ndim != 1 or value_S.dtype.kind not in "iu" or len(value_S) != len(self.micro_batch_S):
                raise InvalidInput.of(
                    f"schedule.{field[:-2]}",
                    expected=f"{len(self.micro_batch_S)} integers, one per sequence",
                    got=f"{value_S.dtype} {value_S.shape}",
                )
            if len(value_S) and value_S.min() < 0:
                raise InvalidInput.of(f"schedule.{field[:-2]}", expected="at least 0", got=int(value_S.min()))
            if len(value_S) and value_S.max() > _MAX_INT32:
                raise InvalidInput.of(
                    f"schedule.{field[:-2]}", expected=f"at most {_MAX_INT32}", got=int(value_S.max())
                )
            object.__setattr__(self, field, np.ascontiguousarray(value_S, dtype=np.int32))
        if not len(self.micro_batch_S):
            raise InvalidInput.of("schedule", expected="at least one sequence", got="none")

    @property
    def num_sequences(self) -> int:
        """S: sequences of the step."""
        return len(self.micro_batch_S)

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of one EP group: one more than the largest index used."""
        return int(self.micro_batch_S.max()) + 1

    @property
    def row_S(self) -> NDArray[np.int32]:
        """The row of every sequence."""
        return self.ep_group_S * np.int32(self.num_micro_batches) + self.micro_batch_S

    def num_rows(self, cluster: Cluster) -> int:
        """Return M: the rows of a load or plan under `cluster`."""
        return cluster.num_ep_groups * self.num_micro_batches

    def check(self, cluster: Cluster) -> None:
        """Raise `InvalidInput` if the schedule names a rank or group that `cluster` does not have.

        Raises:
            InvalidInput: the text names the first sequence at fault.
        """
        for field, value_S, bound in (
            ("source_rank", self.source_rank_S, cluster.num_ranks),
            ("ep_group", self.ep_group_S, cluster.num_ep_groups),
        ):
            bad_S = np.flatnonzero(value_S >= bound)
            if len(bad_S):
                raise InvalidInput.of(
                    f"schedule.{field}[{bad_S[0]}]", expected=f"0 to {bound - 1}", got=int(value_S[bad_S[0]])
                )

    @classmethod
    def round_robin(cls, num_sequences: int, num_micro_batches: int, cluster: Cluster) -> "Schedule":
        """Deal sequences to micro-batches in turn, then to source ranks and groups, as frameworks do by default."""
        index_S = np.arange(num_sequences, dtype=np.int32)
        turn_S = index_S // np.int32(num_micro_batches)
        return cls(
            micro_batch_S=index_S % np.int32(num_micro_batches),
            source_rank_S=turn_S % np.int32(cluster.num_ranks),
            ep_group_S=turn_S // np.int32(cluster.num_ranks) % np.int32(cluster.num_ep_groups),
        )


class Freedom(StrEnum):
    """What packing may change in a schedule."""

    MICRO_BATCHES = "micro_batches"
    """The EP group, micro-batch and source rank of every sequence."""
    RANKS = "ranks"
    """The source rank of every sequence; its row stays. For frameworks where ranks form micro-batches later: a row is
    then whatever they form them from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingRules:
    """What packing must keep of the schedule that it begins from, whose ranks are the only ones that sequences get."""

    freedom: Freedom = Freedom.MICRO_BATCHES
    keeps_counts: bool = False
    """Whether every source rank keeps its number of sequences in every row."""
    token_budget: int | None = None
    """The most tokens of a source rank in a micro-batch; by default what the schedule needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """A packed schedule: what `pack` decides and `solve` takes over."""

    schedule: Schedule
    home_LE: NDArray[np.int32]
    """The placement that the schedule was made for. `reorder` chose it, so it moves experts only where that gains
    enough."""
