import numpy as np
import pytest

from relibra.planning import CostModel, PlanParams
from relibra.planning.placement.reorder import reorder
from relibra.planning.prices import Hysteresis
from relibra.planning.replicas.layer_replicas import KnownReplicas
from relibra.planning.replicas.replicate import replicate, replicate_layer
from relibra.planning.traffic import Traffic


def test_replicas_are_known_for_the_placement_that_was_kept_last() -> None:
    known, home_E, other_E = KnownReplicas(), np.array([0, 1], dtype=np.int32), np.array([1, 0], dtype=np.int32)
    found, later = object(), object()
    assert known.of(3, home_E) is None
    known.keep(3, home_E, found)
    assert known.of(3, home_E.copy()) is found
    assert known.of(3, other_E) is None
    assert known.of(2, home_E) is None
    known.keep(3, other_E, later)
    assert known.of(3, home_E) is None
    assert known.of(3, other_E) is later


@pytest.mark.parametrize("token_size_bytes", [0.0, 4096.0])
def test_the_replicas_that_reorder_keeps_are_those_that_would_be_found_again(random_problem, token_size_bytes) -> None:
    problem = random_problem.random(
        2, num_nodes=2, gpus_per_node=2, experts_per_rank=4, redundant_slots=1, num_layers=3, num_sequences=24
    )
    cost = CostModel(token_size_bytes=token_size_bytes, inter_node_bytes_per_us=1024.0)
    traffic = Traffic.of(problem.load, problem.cluster, PlanParams(cost=cost))
    identity_LE, known = problem.cluster.identity_placement(problem.model), KnownReplicas()
    arguments = problem.load_MLE, identity_LE, identity_LE, problem.cluster, problem.price
    home_LE, _ = reorder(*arguments, hysteresis=Hysteresis(least=0.0), traffic=traffic, known=known)
    assert (home_LE != identity_LE).any()
    for layer, home_E in enumerate(home_LE):
        kept, of_layer = known.of(layer, home_E), None if traffic is None else traffic.layer(layer)
        again = replicate_layer(problem.load_MLE[:, layer], home_E, problem.cluster, problem.price, of_layer)
        assert kept is not None
        np.testing.assert_array_equal(kept.index_Y2, again.index_Y2)
        np.testing.assert_array_equal(kept.cost_M, again.cost_M)
    one, other = (
        replicate(problem.load_MLE, home_LE, problem.cluster, problem.price, traffic=traffic, known=each)[0]
        for each in (known, None)
    )
    np.testing.assert_array_equal(one, other)
