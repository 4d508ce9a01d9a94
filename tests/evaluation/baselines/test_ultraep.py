import numpy as np
import pytest

from relibra.evaluation.baselines.ultraep import quota_replicas, ultraep
from relibra.evaluation.work import work_of
from relibra.planning import Cluster, Model, Schedule
from relibra.planning.load import StepLoad
from relibra.planning.replicas.replicate import replicate_layer


def test_a_hot_expert_is_shared_out_to_one_per_cent_above_the_mean():
    # The first two take all room below 2020 tokens; what is left for the third is less.
    assert quota_replicas(np.array([8000, 0, 0, 0]), 4, 1, 1024).tolist() == [[0, 1, 2020], [0, 2, 2020], [0, 3, 1940]]


def test_a_replica_may_be_small_if_it_is_a_fair_share_of_the_excess():
    assert quota_replicas(np.array([900, 0, 0, 0]), 4, 1, 1024).tolist() == [[0, 1, 228], [0, 2, 228], [0, 3, 216]]


def test_the_limit_rises_by_one_per_cent_of_the_heaviest_rank_until_it_works():
    # Below 1010 tokens rank 2 has room for 470, and rank 1 must hand over 490; below 1025 there is room.
    assert quota_replicas(np.array([1500, 1500, 540, 460]), 4, 1, 1024).tolist() == [[0, 3, 475], [1, 2, 475]]


def test_the_search_finds_the_lowest_limit_but_makes_no_small_replicas():
    # The two raised limits, 1025 and 1040, do not work either.
    load_X = np.array([1500, 1500, 600, 400])
    assert quota_replicas(load_X, 4, 1, 100).tolist() == [[0, 3, 450], [1, 2, 450]]
    assert len(quota_replicas(load_X, 4, 1, 1024)) == 0


@pytest.mark.parametrize(("num_ranks", "most"), [(8, 7), (16, 4)])
def test_in_a_domain_of_more_than_8_ranks_others_pass_on_the_weights_of_a_hot_expert(num_ranks, most):
    cluster = Cluster(num_nodes=1, gpus_per_node=num_ranks, redundant_slots=1)
    counts_SLE = np.full((num_ranks, 1, num_ranks), 0)
    counts_SLE[:, 0, 0] = 8000
    load = StepLoad.of(counts_SLE, Schedule.round_robin(num_ranks, 1, cluster), cluster)
    model = Model(num_layers=1, num_experts=num_ranks, top_k=1)
    assignment = ultraep(load.load_MLE, model, cluster)
    assert assignment.is_replica_Q.sum() == num_ranks - 1
    assert work_of(assignment, load, cluster).weights_inside_ML.max() == most


@pytest.mark.parametrize("seed", range(5))
def test_joint_planning_is_at_least_as_good(seed):
    load_X = np.random.default_rng(seed).lognormal(8, 1, 32).astype(np.int64)
    replica_Y3 = quota_replicas(load_X, 8, 2, 1)
    loads_G = load_X.reshape(8, 4).sum(axis=1)
    np.subtract.at(loads_G, replica_Y3[:, 0] // 4, replica_Y3[:, 2])
    np.add.at(loads_G, replica_Y3[:, 1], replica_Y3[:, 2])
    home_E = (np.arange(32) // 4).astype(np.int32)
    cluster = Cluster(num_nodes=1, gpus_per_node=8, redundant_slots=2)
    ours = replicate_layer(load_X[None], home_E, cluster).limit_M[0]
    assert ours <= loads_G.max() < load_X.reshape(8, 4).sum(axis=1).max()
