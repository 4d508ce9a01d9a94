"""Which machines the ranks run on, as the planner needs to know it: nodes and GPUs of one EP group."""

import socket
from collections.abc import Sequence
from itertools import groupby

import torch.distributed as dist

from relibra.errors import Unsupported
from relibra.planning import Cluster


def cluster_of(hosts_of_groups: Sequence[Sequence[str]], *, num_ep_groups: int) -> Cluster:
    """Return the cluster of EP groups that are spread over machines alike, without redundant slots.

    Args:
        hosts_of_groups: the name of the machine of each rank, in order of EP rank, of every EP group; pipeline stages
            and the parts of cut experts have EP groups of their own.
        num_ep_groups: the EP groups that hold the same experts: the size of the expert-data-parallel group.

    Raises:
        Unsupported: the ranks of a group on one machine do not follow one another, or machines have different numbers
            of them.
    """
    shapes = set[tuple[int, ...]]()
    for hosts in hosts_of_groups:
        runs = [(host, len(list(ranks))) for host, ranks in groupby(hosts)]
        if len({host for host, _ in runs}) != len(runs):
            raise Unsupported(
                f"expected the ranks of an EP group on one machine to follow one another, got the machines {hosts} in "
                "order of EP rank; have the launcher number the ranks machine by machine"
            )
        shapes.add(tuple(length for _, length in runs))
    shape = next(iter(shapes))
    if len(shapes) > 1 or len(set(shape)) > 1:
        raise Unsupported(
            f"expected every EP group to have equally many ranks on each of its machines, got {sorted(shapes)} ranks; "
            "choose an expert-parallel size that divides the GPUs of a machine, or is a multiple of them"
        )
    return Cluster(num_nodes=len(shape), gpus_per_node=shape[0], redundant_slots=0, num_ep_groups=num_ep_groups)


def gather_hosts(ep_ranks: Sequence[int]) -> list[list[str]]:
    """Collective over all ranks: return the machine of each rank, in order of EP rank, for every EP group.

    Args:
        ep_ranks: the global ranks of this rank's EP group, in order.
    """
    mine = (tuple(ep_ranks), socket.gethostname())
    told = [mine] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return [[told[rank][1] for rank in group] for group in sorted({group for group, _ in told})]
