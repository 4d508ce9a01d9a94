"""The loads that ranks realised in one phase, summed up one rank at a time: no load is kept.

m micro-batches of one EP group, L layers, P pipeline stages.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster
from relibra.planning.memory import ActivationMemory
from relibra.planning.peak import Held, Stage


class RealisedLoads:
    """The sum of the loads of ranks.

    Args:
        cluster: the EP groups.
        memory: what a token copy takes.
        is_kept: whether ranks keep activations for a backward pass, as in the update phase.
    """

    def __init__(self, cluster: Cluster, memory: ActivationMemory, *, is_kept: bool) -> None:
        self._num_ranks, self._memory, self._is_kept = cluster.num_ranks, memory, is_kept
        self._slowest_mL: dict[int, NDArray[np.int64]] = {}
        """For each EP group, the largest load of a rank in each cell."""
        self._all_mL: dict[int, NDArray[np.int64]] = {}
        """For each EP group, the load of all its ranks."""
        self._most_kept_P: dict[int, NDArray[np.int64]] = {}
        """For each EP group, the most token copies that a rank of a stage keeps at once."""
        self._stages: dict[int, list[Stage]] = {}
        """The stages, by the number of micro-batches."""
        self._peak_bytes = 0
        self.has_one_shape = True
        """Whether the loads of all ranks had the same micro-batches and layers. If not, nothing can be said of them."""

    def add(self, ep_group: int, load_mL: NDArray[np.int64]) -> None:
        """Add the token copies that a rank computed."""
        slowest_mL = self._slowest_mL.setdefault(ep_group, np.zeros_like(load_mL))
        if slowest_mL.shape != load_mL.shape:
            self.has_one_shape = False
            return
        np.maximum(slowest_mL, load_mL, out=slowest_mL)
        self._all_mL[ep_group] = self._all_mL.get(ep_group, 0) + load_mL
        most_kept_P = self._most_kept_P.setdefault(ep_group, np.zeros(self._memory.num_stages, dtype=np.int64))
        for stage, held in enumerate(self._held(load_mL)):
            most_kept_P[stage] = max(most_kept_P[stage], held.kept_TR.max(initial=0))
            self._peak_bytes = max(self._peak_bytes, int(held.size_TR(self._memory).max(initial=0)))

    def _held(self, load_mL: NDArray[np.int64]) -> list[Held]:
        """Return what a rank with this load holds, by stage; nothing where nothing is kept."""
        if not self._is_kept:
            return []
        if len(load_mL) not in self._stages:
            self._stages[len(load_mL)] = Stage.all_of(self._memory, *load_mL.shape)
        return [Held.of(load_mL[..., None], stage) for stage in self._stages[len(load_mL)]]

    @property
    def imbalance(self) -> float:
        """`planning.load.imbalance`."""
        slowest = sum(int(slowest_mL.sum()) for slowest_mL in self._slowest_mL.values())
        total = sum(int(all_mL.sum()) for all_mL in self._all_mL.values())
        return slowest * self._num_ranks / total if total else 1.0

    @property
    def overload(self) -> float:
        """`Peak.overload`."""
        factors = [
            (self._slowest_mL[group] * self._num_ranks / np.maximum(all_mL, 1)).max(initial=1.0)
            for group, all_mL in self._all_mL.items()
        ]
        return float(max(factors, default=1.0))

    @property
    def cum_overload(self) -> float | None:
        """`Peak.cum_overload`; None where nothing is kept."""
        if not self._is_kept:
            return None
        factors = [1.0]
        for group, all_mL in self._all_mL.items():
            for most_kept, held in zip(self._most_kept_P[group], self._held(all_mL), strict=True):
                balanced = held.kept_TR.max(initial=0) / self._num_ranks
                factors.append(float(most_kept / balanced) if balanced else 1.0)
        return max(factors)

    @property
    def peak_bytes(self) -> int | None:
        """`Peak.size_bytes`; None where nothing is kept, or the bytes of a token copy are not known."""
        return self._peak_bytes if self._is_kept and self._memory.is_known else None
