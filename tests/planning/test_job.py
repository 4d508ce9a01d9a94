import numpy as np
import pytest

from relibra.errors import InvalidInput
from relibra.planning import Cluster, CostModel, Model, PlanParams


def test_the_identity_placement_deals_experts_in_order():
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=0)
    home_LE = cluster.identity_placement(Model(num_layers=2, num_experts=8, top_k=2))
    np.testing.assert_array_equal(home_LE, [[0, 0, 1, 1, 2, 2, 3, 3]] * 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Model(num_layers=0, num_experts=1, top_k=1), "model.num_layers: expected at least 1"),
        (lambda: Model(num_layers=1, num_experts=4, top_k=5), "model.top_k: expected at most num_experts = 4"),
        (lambda: Cluster(num_nodes=0, gpus_per_node=1, redundant_slots=0), "cluster.num_nodes: expected at least 1"),
        (lambda: Cluster(num_nodes=1, gpus_per_node=1, redundant_slots=-1), "cluster.redundant_slots"),
        (lambda: PlanParams(seed=-1), "params.seed"),
        (lambda: PlanParams(min_tokens_per_replica=-1), "params.min_tokens_per_replica"),
    ],
)
def test_impossible_values_are_refused_by_name(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_a_cost_model_may_come_as_json_has_it():
    assert PlanParams(cost={"token_size_bytes": 7}).cost == CostModel(token_size_bytes=7)
    with pytest.raises(InvalidInput, match=r"cost\.token_size_bytes: expected at least 0, got -1"):
        PlanParams(cost={"token_size_bytes": -1})
