import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.replicated import quotas_of, replicated
from relibra.planning import Cluster
from relibra.planning.expected.replicas import foresee_layer
from relibra.planning.prices import ReplicaPrice
from relibra.planning.replicas.replicate import replicate


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 4), st.integers(0, 3), st.integers(1, 3))
def test_S2_replicas_fit_their_slots_stay_in_their_node_and_divide_every_load(
    seed: int, num_nodes: int, gpus_per_node: int, slots: int, per_rank: int
) -> None:
    rng = np.random.default_rng(seed)
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=gpus_per_node, redundant_slots=slots)
    num_experts = per_rank * cluster.num_ranks
    load_MLE = (rng.pareto(1.0, (2, 1, num_experts)) * 50).astype(np.int64) * rng.integers(0, 2, (2, 1, 1))
    home_LE = rng.permutation(np.repeat(np.arange(cluster.num_ranks), per_rank)).astype(np.int32)[None]
    price = ReplicaPrice(least=int(rng.integers(1, 20)))
    quotas = replicated(load_MLE, home_LE, cluster, price, choose=foresee_layer)
    row_Q, layer_Q, expert_Q, rank_Q = quotas.index_Q4.T
    divided_MLE = np.zeros_like(load_MLE)
    np.add.at(divided_MLE, (row_Q, layer_Q, expert_Q), quotas.tokens_Q)
    np.testing.assert_array_equal(divided_MLE, load_MLE)
    is_replica_Q = home_LE[layer_Q, expert_Q] != rank_Q
    assert (home_LE[layer_Q, expert_Q] // gpus_per_node == rank_Q // gpus_per_node).all()
    used_MR = np.zeros((2, cluster.num_ranks), dtype=np.int64)
    np.add.at(used_MR, (row_Q[is_replica_Q], rank_Q[is_replica_Q]), 1)
    assert used_MR.max() <= slots
    layer = foresee_layer(load_MLE[:, 0], home_LE[0], cluster, price)
    tokens_NY = layer.tokens_Y.reshape(2, -1)
    assert (tokens_NY.mean(axis=0) >= price.least).all()
    np.testing.assert_array_equal(*layer.index_Y2.reshape(2, -1, 2))
    loads_MR = np.zeros((2, cluster.num_ranks), dtype=np.int64)
    np.add.at(loads_MR, (row_Q, rank_Q), quotas.tokens_Q)
    np.testing.assert_array_equal(loads_MR.max(axis=1), layer.limit_M)


def test_a_hot_expert_is_divided_over_all_ranks_that_have_room() -> None:
    cluster = Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=1)
    load_ME = np.array([[1000, 10, 10, 10]])
    layer = foresee_layer(load_ME, np.arange(4, dtype=np.int32), cluster, ReplicaPrice())
    assert layer.index_Y2[:3].tolist() == [[0, 1], [0, 2], [0, 3]]
    assert layer.limit_M[0] == -(-load_ME.sum() // 4)


def test_loads_that_vary_by_half_leave_ranks_more_equal_than_a_plan_for_their_mean() -> None:
    """Hedging lowers the mean of the slowest rank over random loads that are split when they come."""
    rng = np.random.default_rng(0)
    cluster = Cluster(num_nodes=1, gpus_per_node=8, redundant_slots=2)
    mean_E = (rng.pareto(1.5, 32) * 1000).astype(np.int64) + 100
    home_LE = np.repeat(np.arange(8), 4).astype(np.int32)[None]
    slowest = []
    for choose in (None, foresee_layer):
        index_Y4, _ = replicate(mean_E[None, None], home_LE, cluster, choose=choose)
        load_DE = (mean_E * rng.gamma(4, 1 / 4, (200, 32))).astype(np.int64)
        loads_DR = np.zeros((200, 8))
        for loads_R, load_E in zip(loads_DR, load_DE, strict=True):
            quotas = quotas_of(load_E[None, None], home_LE, cluster, index_Y4)
            np.add.at(loads_R, quotas.index_Q4[:, 3], quotas.tokens_Q)
        slowest.append((loads_DR.max(axis=1) / loads_DR.mean(axis=1)).mean())
    assert slowest[1] < 0.95 * slowest[0]
