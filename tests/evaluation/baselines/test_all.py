"""Every baseline computes each token once, on a rank where its expert may have a copy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.evaluation.assignment import at_home
from relibra.evaluation.baselines.eplb import eplb
from relibra.evaluation.baselines.moonep import moonep
from relibra.evaluation.baselines.ultraep import ultraep
from relibra.planning import Cluster, Model

_ALL = (eplb, ultraep, moonep)


@pytest.mark.parametrize("baseline", _ALL, ids=lambda each: each.__name__)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 3),
    gpus=st.integers(1, 4),
    per_rank=st.integers(1, 3),
    slots=st.integers(0, 2),
    scale=st.sampled_from([0, 1, 3000]),
)
@settings(max_examples=15, deadline=None)
def test_every_token_is_computed_once_and_replicas_stay_on_the_node(
    baseline, seed, nodes, gpus, per_rank, slots, scale
):
    cluster = Cluster(num_nodes=nodes, gpus_per_node=gpus, redundant_slots=slots)
    model = Model(num_layers=2, num_experts=cluster.num_ranks * per_rank, top_k=1)
    rng = np.random.default_rng(seed)
    load_MLE = rng.poisson(rng.lognormal(0, 1, (3, 2, model.num_experts)) * scale)
    assignment = baseline(load_MLE, model, cluster)

    computed_MLE = np.zeros_like(load_MLE)
    np.add.at(computed_MLE, tuple(assignment.index_Q4[:, :3].T), assignment.tokens_Q)
    np.testing.assert_array_equal(computed_MLE, load_MLE)
    assert len(np.unique(assignment.index_Q4, axis=0)) == len(assignment.index_Q4)
    assert (assignment.tokens_Q > 0).all()
    if baseline is not eplb:  # EPLB calls the first copy the home, so its ranks may have unequal numbers of homes
        for home_E in assignment.home_LE:
            np.testing.assert_array_equal(np.bincount(home_E, minlength=cluster.num_ranks), per_rank)
    _, layer_Q, expert_Q, rank_Q = assignment.index_Q4.T
    np.testing.assert_array_equal(assignment.home_LE[layer_Q, expert_Q] // gpus, rank_Q // gpus)


@pytest.mark.parametrize("baseline", _ALL, ids=lambda each: each.__name__)
def test_a_skewed_load_is_never_worse_than_plain(baseline):
    cluster = Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=2)
    model = Model(num_layers=2, num_experts=32, top_k=2)
    rng = np.random.default_rng(0)
    load_MLE = rng.poisson(rng.lognormal(8, 1, (1, 2, 32)), (4, 2, 32))
    plain = at_home(load_MLE, cluster.identity_placement(model))
    slowest, slowest_plain = (
        each.rank_loads_MLR(cluster).max(axis=-1).sum() for each in (baseline(load_MLE, model, cluster), plain)
    )
    assert slowest < 0.9 * slowest_plain
