"""The load that a plan expects from every source rank, by bucket of experts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relibra.planning import Cluster, Schedule, StepLoad
from relibra.planning.source_load import NUM_BUCKETS, folded, source_load


@given(st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_folding_keeps_all_tokens_and_separates_the_buckets(num_experts: int, seed: int) -> None:
    counts_LE = np.random.default_rng(seed).integers(0, 1000, (3, num_experts))
    counts_LB = folded(counts_LE)
    assert counts_LB.shape == (3, min(NUM_BUCKETS, num_experts))
    for bucket in range(counts_LB.shape[1]):
        assert counts_LB[:, bucket].tolist() == counts_LE[:, bucket :: counts_LB.shape[1]].sum(axis=1).tolist()


def test_every_source_rank_has_the_sequences_that_start_there() -> None:
    cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1, num_ep_groups=2)
    counts_SLE = np.random.default_rng(3).integers(0, 50, (24, 2, 40)).astype(np.uint16)
    load = StepLoad.of(counts_SLE, Schedule.round_robin(24, 3, cluster), cluster)
    load_RMLB = source_load(load)
    assert load_RMLB.shape == (2, 6, 2, NUM_BUCKETS)
    for row in range(6):
        assert load_RMLB[:, row].tolist() == folded(load.source_load_RLE(row)).tolist()
