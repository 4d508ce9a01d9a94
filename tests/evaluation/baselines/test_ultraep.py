import numpy as np
import pytest

from relibra.evaluation.baselines.ultraep import quota_replicas
from relibra.planning import Cluster
from relibra.planning.replicas.replicate import replicate_layer


def test_a_hot_expert_is_shared_out_evenly():
    replica_Y3 = quota_replicas(np.array([8000, 0, 0, 0]), 4, 1, 100)
    assert replica_Y3[:, 0].tolist() == [0, 0, 0]
    np.testing.assert_allclose(replica_Y3[:, 2], 2000, rtol=0.02)


def test_small_replicas_are_not_made():
    assert len(quota_replicas(np.array([900, 0, 0, 0]), 4, 2, 1024)) == 0


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
