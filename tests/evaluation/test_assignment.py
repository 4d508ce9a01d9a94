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
    assignment = Assignment.of_plan(plan, load)
    np.testing.assert_array_equal(assignment.rank_loads_MLR(cluster), plan.rank_loads_MLR)
    assert assignment.is_replica_Q.sum() == plan.prediction.num_replicas > 0


def test_as_many_tokens_cross_to_replicas_and_homes_as_come_from_other_nodes():
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    schedule = Schedule.round_robin(8, 2, cluster)
    counts_SLE = np.random.default_rng(0).poisson([[90, 9, 9, 9, 9, 50, 9, 9]], (8, 1, 8))
    load = StepLoad.of(counts_SLE, schedule, cluster)
    plan = solve(load, schedule, Model(num_layers=1, num_experts=8, top_k=1), cluster)
    assignment = Assignment.of_plan(plan, load)
    replica_Q = assignment.is_replica_Q
    assert not assignment.crossing_Q[~replica_Q].any()
    assert 0 < assignment.crossing_Q[replica_Q].sum() < assignment.tokens_Q[replica_Q].sum()
    crossing_MLE = load.crossing_MLE(plan.home_rank_LE, cluster)
    row_Q, layer_Q, expert_Q, _ = assignment.index_Q4.T
    np.subtract.at(crossing_MLE, (row_Q, layer_Q, expert_Q), assignment.crossing_Q)
    assert (crossing_MLE >= 0).all()
