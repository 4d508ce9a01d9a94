"""Layouts: how the ranks of a test are arranged. This module imports neither torch nor megatron."""

from dataclasses import dataclass

from relibra.planning import Cluster


@dataclass(frozen=True, kw_only=True)
class Layout:
    """An arrangement of ranks."""

    name: str
    cluster: Cluster
    num_ranks: int = 4
    tensor_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    context_parallel_size: int = 1
    num_stages: int = 1
    num_chunks: int | None = None
    """The number of virtual stages per pipeline stage."""

    def __str__(self) -> str:
        return self.name


_EP4 = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=2)
_EP2_EDP2 = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=3, num_ep_groups=2)
_EP2 = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
NODE = Layout(name="node", cluster=Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=2))
EP4 = Layout(name="ep4", cluster=_EP4)
"""One EP group of 2 nodes x 2 ranks."""
EP2_EDP2 = Layout(name="ep2_edp2", cluster=_EP2_EDP2)
"""Two EP groups of 1 node x 2 ranks: expert data parallelism."""
EP2 = Layout(name="ep2", cluster=_EP2, num_ranks=2)
EP2_PP2 = Layout(name="ep2_pp2", cluster=_EP2, num_stages=2)
EP2_VPP = Layout(name="ep2_vpp", cluster=_EP2, num_stages=2, num_chunks=2)
TP2_EP2_EDP2 = Layout(name="tp2_ep2_edp2", cluster=_EP2_EDP2, tensor_parallel_size=2)
ETP2_EP2 = Layout(name="etp2_ep2", cluster=_EP2, expert_tensor_parallel_size=2)
TP2_ETP2_EP2 = Layout(name="tp2_etp2_ep2", cluster=_EP2, tensor_parallel_size=2, expert_tensor_parallel_size=2)
CP2_EP2_EDP2 = Layout(name="cp2_ep2_edp2", cluster=_EP2_EDP2, context_parallel_size=2)
CP2_TP2_EP2_EDP2 = Layout(name="cp2_tp2_ep2_edp2", cluster=_EP2_EDP2, context_parallel_size=2, tensor_parallel_size=2)
ONE_RANK = Layout(name="one_rank", cluster=Cluster(num_nodes=1, gpus_per_node=1, redundant_slots=2), num_ranks=1)
