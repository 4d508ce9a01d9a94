import numpy as np
import pytest

from relibra.evaluation import eplb, identity
from relibra.evaluation.baselines import rebalance_experts
from relibra.planning import Cluster, Model


def test_eplb_gives_the_answer_its_authors_publish():
    weight_LE = np.array(
        [
            [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
            [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
        ]
    )
    logical_LP = rebalance_experts(weight_LE, num_physical=16, num_groups=4, num_nodes=2, num_ranks=8)
    np.testing.assert_array_equal(
        logical_LP,
        [[5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]],
    )


@pytest.mark.parametrize(
    ("nodes", "gpus", "per_rank", "slots"), [(1, 4, 2, 1), (2, 4, 1, 0), (4, 1, 2, 2), (2, 2, 4, 3), (8, 1, 1, 1)]
)
def test_eplb_computes_every_token_once_and_holds_every_expert(nodes, gpus, per_rank, slots):
    cluster = Cluster(num_nodes=nodes, gpus_per_node=gpus, redundant_slots=slots)
    model = Model(num_layers=2, num_experts=cluster.num_ranks * per_rank, top_k=1)
    rng = np.random.default_rng(0)
    load_MLE = rng.poisson(rng.lognormal(4, 1, (3, 2, model.num_experts)))
    loads_MLR = eplb(load_MLE, model, cluster)
    assert loads_MLR.shape == (3, 2, cluster.num_ranks)
    np.testing.assert_allclose(loads_MLR.sum(axis=-1), load_MLE.sum(axis=-1))


def test_eplb_of_an_even_load_is_even():
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=2)
    model = Model(num_layers=1, num_experts=8, top_k=1)
    loads_MLR = eplb(np.full((1, 1, 8), 10), model, cluster)
    np.testing.assert_allclose(loads_MLR, 20)


def test_identity_is_plain_expert_parallelism():
    cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
    model = Model(num_layers=1, num_experts=4, top_k=1)
    np.testing.assert_array_equal(identity(np.array([[[1, 2, 3, 4]]]), model, cluster), [[[3, 7]]])
