"""A routing trace: the experts of every token of a set of sequences, and the schedule if one is fixed.

T tokens of all sequences, L MoE layers, K top-k, S sequences, E experts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidTrace
from relibra.planning.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutingTrace:
    """Routed experts of S sequences, one after the other; sequence s has the rows `offsets[s]` to `offsets[s + 1]`.

    The fields have the names of the file's keys. The constructor checks them.

    Raises:
        InvalidTrace: a field is wrong; the message names it and says what was expected.
    """

    routed_experts: NDArray[np.uint8] | NDArray[np.uint16]
    """`[T, L, K]`, each below `num_experts`."""
    offsets: NDArray[np.int64]
    """`[S + 1]`, from 0 to T, never decreasing."""
    num_experts: int
    domain: NDArray[np.str_] | None = None
    """The kind of data that each sequence comes from, `[S]`."""
    micro_batch: NDArray[np.int32] | None = None
    """The micro-batch of each sequence in a fixed schedule, `[S]`; `source_rank` must come with it."""
    source_rank: NDArray[np.int32] | None = None
    """The source rank of each sequence in a fixed schedule, `[S]`."""
    ep_group: NDArray[np.int32] | None = None
    """The EP group of each sequence in a fixed schedule, `[S]`; all 0 if absent."""

    def __post_init__(self) -> None:
        _check_routed_experts(self.routed_experts, self.num_experts)
        _check_offsets(self.offsets, len(self.routed_experts))
        for field in ("domain", "micro_batch", "source_rank", "ep_group"):
            _check_per_sequence(field, getattr(self, field), self.num_sequences)
        for field, needed in (
            ("micro_batch", "source_rank"),
            ("source_rank", "micro_batch"),
            ("ep_group", "micro_batch"),
        ):
            if getattr(self, field) is not None and getattr(self, needed) is None:
                raise InvalidTrace.of(needed, expected=f"to come with {field}, as a fixed schedule", got="no such key")

    @property
    def num_sequences(self) -> int:
        """S, the number of sequences."""
        return len(self.offsets) - 1

    @property
    def num_layers(self) -> int:
        """L, the number of MoE layers."""
        return int(self.routed_experts.shape[1])

    @property
    def top_k(self) -> int:
        """K, the experts that each token chooses."""
        return int(self.routed_experts.shape[2])

    @property
    def schedule(self) -> Schedule | None:
        """The fixed schedule, if the trace has one."""
        if self.micro_batch is None or self.source_rank is None:
            return None
        ep_group = np.zeros_like(self.micro_batch) if self.ep_group is None else self.ep_group
        return Schedule(micro_batch_S=self.micro_batch, source_rank_S=self.source_rank, ep_group_S=ep_group)


def _check_routed_experts(routed_TLK: NDArray[Any], num_experts: int) -> None:
    if routed_TLK.ndim != 3 or routed_TLK.dtype not in (np.uint8, np.uint16) or 0 in routed_TLK.shape[1:]:
        raise InvalidTrace.of(
            "routed_experts",
            expected="uint8 or uint16 [T, L, K] with at least one layer and one expert per token",
            got=f"{routed_TLK.dtype} {routed_TLK.shape}",
        )
    if num_experts < 1:
        raise InvalidTrace.of("num_experts", expected="at least 1", got=num_experts)
    if routed_TLK.shape[2] > num_experts:
        raise InvalidTrace.of(
            "routed_experts", expected=f"at most num_experts = {num_experts} experts per token", got=routed_TLK.shape[2]
        )
    if routed_TLK.size and int(routed_TLK.max()) >= num_experts:
        raise InvalidTrace.of(
            "routed_experts",
            expected=f"expert ids below num_experts = {num_experts}",
            got=f"expert {routed_TLK.max()}",
        )


def _check_offsets(offsets: NDArray[Any], num_tokens: int) -> None:
    if offsets.ndim != 1 or offsets.dtype != np.int64 or len(offsets) < 2:
        raise InvalidTrace.of(
            "offsets", expected="int64 [S + 1] of at least one sequence", got=f"{offsets.dtype} {offsets.shape}"
        )
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        at = int(falls[0])
        raise InvalidTrace.of(
            f"offsets[{at + 1}]", expected=f"at least the offset before it, {offsets[at]}", got=offsets[at + 1]
        )
    if offsets[0] != 0 or offsets[-1] != num_tokens:
        raise InvalidTrace.of(
            "offsets",
            expected=f"to run from 0 to the {num_tokens} rows of routed_experts",
            got=f"{offsets[0]} to {offsets[-1]}",
        )


def _check_per_sequence(field: str, value_S: NDArray[Any] | None, num_sequences: int) -> None:
    if value_S is None:
        return
    fits = value_S.dtype.kind == "U" if field == "domain" else value_S.dtype == np.int32
    if not fits or value_S.shape != (num_sequences,):
        kind = "str" if field == "domain" else "int32"
        raise InvalidTrace.of(field, expected=f"{kind} [{num_sequences}]", got=f"{value_S.dtype} {value_S.shape}")
    if field != "domain" and int(value_S.min()) < 0:
        raise InvalidTrace.of(field, expected="at least 0", got=value_S.min())
