import numpy as np

from relibra.evaluation.assignment import Assignment, at_home, from_pieces
from relibra.planning import Cluster, Model, Schedule, StepLoad
from relibra.planning.solve import solve

_HOME_LE = np.array([[0, 0, 1, 1]], dtype=np.int32)


def test_at_home_nothing_is_a_replica():
    assignment = at_home(np.array([[[1, 0, 3, 4]]]), _HOME_LE)
    assert assignment.index_Q4.tolist() == [[0, 0, 0, 0], [0, 0, 2, 1], [0, 0, 3, 1]]
    assert assignment.tokens_Q.tolist() == [1, 3, 4]
    assert not assignment.is_replica_Q.any()


def test_pieces_in_one_place_add_up_and_empty_pieces_vanish():
    index_X4 = np.array([[0, 0, 2, 1], [0, 0, 2, 0], [0, 0, 2, 1], [0, 0, 1, 0]])
    assignment = from_pieces(index_X4, np.array([5, 2, 6, 0]), _HOME_LE, num_rows=1)
    assert assignment.index_Q4.tolist() == [[0, 0, 2, 0], [0, 0, 2, 1]]
    assert assignment.tokens_Q.tolist() == [2, 11]
    assert assignment.is_replica_Q.tolist() == [True, False]


def test_a_plan_is_an_assignment():
    cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1)
    schedule = Schedule.round_robin(4, 2, cluster)
    load = StepLoad.of(np.random.default_rng(0).poisson([[90, 9, 9, 9]], (4, 1, 4)), schedule, cluster)
    plan = solve(load, schedule, Model(num_layers=1, num_experts=4, top_k=1), cluster)
    assignment = Assignment.of_plan(plan)
    np.testing.assert_array_equal(assignment.rank_loads_MLR(cluster), plan.rank_loads_MLR)
    assert assignment.is_replica_Q.sum() == plan.prediction.num_replicas > 0


def test_the_shares_of_a_plan_say_which_tokens_of_replicas_cross():
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    schedule = Schedule.round_robin(8, 2, cluster)
    counts_SLE = np.random.default_rng(0).poisson([[90, 9, 9, 9, 9, 50, 9, 9]], (8, 1, 8))
    plan = solve(
        StepLoad.of(counts_SLE, schedule, cluster), schedule, Model(num_layers=1, num_experts=8, top_k=1), cluster
    )
    assignment = Assignment.of_plan(plan)
    share_YR, node_Y = plan.shares.to_array(), plan.quota_index_Q4[plan.is_replica_Q, 3] // 2
    crossing_Y = [
        int(share_R[2 * (1 - node) : 2 * (2 - node)].sum()) for share_R, node in zip(share_YR, node_Y, strict=True)
    ]
    assert assignment.crossing_Q[plan.is_replica_Q].tolist() == crossing_Y
    assert sum(crossing_Y) > 0
    assert not assignment.crossing_Q[~plan.is_replica_Q].any()
