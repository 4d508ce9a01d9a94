"""What comes of replicas when tokens are split over them."""

import numpy as np
from numpy.typing import NDArray

from relibra.planning import Cluster, StepLoad, StepPlan
from relibra.planning.plan import Quotas, replicated_loads
from relibra.planning.replicas.replicate import replicate
from relibra.planning.split import split_step


def quotas_of(
    load_MLE: NDArray[np.int64], home_LE: NDArray[np.int32], cluster: Cluster, index_Y4: NDArray[np.int32]
) -> Quotas:
    """Split a load over given replicas, where nothing crosses between nodes."""
    none_MLE = np.zeros_like(load_MLE)
    tokens_Y, _ = split_step(load_MLE, none_MLE, home_LE, index_Y4, cluster.gpus_per_node, cluster.num_ranks)
    return Quotas.of(load_MLE, home_LE, index_Y4, tokens_Y)


def replicated(load_MLE: NDArray[np.int64], home_LE: NDArray[np.int32], cluster: Cluster, *args, **options) -> Quotas:
    """Choose replicas with `replicate` and split the load over them."""
    index_Y4, _ = replicate(load_MLE, home_LE, cluster, *args, **options)
    return quotas_of(load_MLE, home_LE, cluster, index_Y4)


def executed_loads(plan: StepPlan, load: StepLoad, cluster: Cluster) -> NDArray[np.int64]:
    """Return the token copies that each rank computes in every cell if all ranks execute the plan."""
    home_LE, index_Y4 = plan.home_rank_LE, plan.replicas.index_Y4
    crossing_MLE = load.crossing_MLE(home_LE, cluster)
    tokens_Y, _ = split_step(load.load_MLE, crossing_MLE, home_LE, index_Y4, cluster.gpus_per_node, cluster.num_ranks)
    return replicated_loads(load.load_MLE, home_LE, index_Y4, tokens_Y, cluster.num_ranks)
