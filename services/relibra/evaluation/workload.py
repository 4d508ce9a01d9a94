"""The steps that policies balance: recorded routing brought to the size of training, or routing drawn like it.

S sequences, L layers, E experts, R EP ranks.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.evaluation.model_shape import ModelShape
from relibra.evaluation.routing_statistics import RoutingStatistics, draw_counts
from relibra.planning.job import Cluster
from relibra.planning.load import StepLoad
from relibra.planning.schedule import Schedule
from relibra.routing.counts import count_sequences
from relibra.routing.trace import RoutingTrace


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The sequences of one step, and the schedule they come with."""

    counts_SLE: NDArray[np.integer]
    length_S: NDArray[np.int64]
    """The tokens of each sequence."""
    schedule: Schedule
    cluster: Cluster

    @cached_property
    def load(self) -> StepLoad:
        """The token copies of every cell."""
        return self.load_under(self.schedule)

    def load_under(self, schedule: Schedule) -> StepLoad:
        """Return the token copies of every cell under another schedule of the same sequences."""
        return StepLoad.of(self.counts_SLE, schedule, self.cluster)


def tile(trace: RoutingTrace, cluster: Cluster, num_micro_batches: int, tokens_per_rank: int, seed: int) -> Workload:
    """Fill every micro-batch of every rank up to `tokens_per_rank`, with sequences drawn from a trace with replacement.

    Recorded sequences are short compared with those of training. A long rollout is about one thing, so all sequences of
    a rank in a micro-batch come from one domain and together count as one sequence. Real long sequences would differ
    more from each other than these do.

    Raises:
        InvalidInput: no sequence has a token.
    """
    rng = np.random.default_rng(seed)
    counts_SLE, length_S = count_sequences(trace), np.diff(trace.offsets)
    filled_X = np.flatnonzero(length_S)
    if not len(filled_X):
        raise InvalidInput.of("trace", expected="a sequence with recorded tokens", got="empty ones only")
    domain_S = np.zeros(len(length_S), dtype=np.int64)
    if trace.domain is not None:
        domain_S = np.unique(trace.domain, return_inverse=True)[1]
    num_bags = cluster.num_ep_groups * num_micro_batches * cluster.num_ranks
    bag_BLE = np.zeros((num_bags, *counts_SLE.shape[1:]), dtype=np.uint32)
    tokens_B = np.zeros(num_bags, dtype=np.int64)
    for bag, first in enumerate(filled_X[rng.integers(0, len(filled_X), num_bags)]):
        same_X = filled_X[domain_S[filled_X] == domain_S[first]]
        sequence = int(first)
        while tokens_B[bag] == 0 or tokens_B[bag] + length_S[sequence] <= tokens_per_rank:
            bag_BLE[bag] += counts_SLE[sequence].astype(np.uint32)
            tokens_B[bag] += length_S[sequence]
            sequence = int(rng.choice(same_X))
    return Workload(
        counts_SLE=bag_BLE,
        length_S=tokens_B,
        schedule=Schedule.round_robin(num_bags, num_micro_batches, cluster),
        cluster=cluster,
    )


def drawn(
    statistics: RoutingStatistics,
    model: ModelShape,
    cluster: Cluster,
    num_micro_batches: int,
    tokens_per_rank: int,
    seed: int,
    step: int = 0,
    num_domains: int = 4,
    drift_sigma: float = 0.02,
    sequences_per_rank: int = 2,
) -> Workload:
    """Draw a step of routing with the given statistics, `sequences_per_rank` for each rank and micro-batch.

    Lengths are log-normal (sigma 0.5), scaled so that those of one rank and micro-batch sum to `tokens_per_rank`.
    """
    rng = np.random.default_rng([seed, 3, step])
    num_bags = cluster.num_ep_groups * num_micro_batches * cluster.num_ranks
    weight_BS = rng.lognormal(0, 0.5, (num_bags, sequences_per_rank))
    length_BS = np.maximum(1, weight_BS / weight_BS.sum(axis=1, keepdims=True) * tokens_per_rank).astype(np.int64)
    domain_BS = rng.integers(0, num_domains, length_BS.shape)
    # Round-robin deals sequence s of all bags, then s + 1 of all bags, so every rank gets its bag again.
    length_S, domain_S = length_BS.T.ravel(), domain_BS.T.ravel()
    return Workload(
        counts_SLE=draw_counts(statistics, model, length_S, domain_S, seed, step, drift_sigma),
        length_S=length_S,
        schedule=Schedule.round_robin(len(length_S), num_micro_batches, cluster),
        cluster=cluster,
    )
