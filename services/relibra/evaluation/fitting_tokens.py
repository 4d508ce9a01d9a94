"""How many tokens of a micro-batch fit into the memory of a GPU, by the size of the EP groups.

The GPUs of a job stay the same: smaller EP groups are more of them. They keep more experts on each rank, whose weights
and gradients leave less room for activations, and average out less of the skew. The optimizer's state is spread over
all GPUs, whatever the groups are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from relibra.evaluation.question import Question
from relibra.evaluation.simulation import RECOMPUTED, simulate
from relibra.planning.job import Cluster
from relibra.planning.machines.constants import GRADIENT_BYTES_PER_WEIGHT_BYTE
from relibra.planning.plan import Level

_WAYS = ("plain", "relibra")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingTokens:
    """What fits into a GPU with one size of EP groups and one way to recompute."""

    ep_size: int
    weights_bytes: int
    """The weights and fp32 gradients of a rank's experts."""
    recomputed: str
    """What the backward computes again: a key of `RECOMPUTED`."""
    plain: int
    """The tokens of a GPU in a micro-batch, without relibra; 0 if the weights leave no room."""
    relibra: int
    """The same with relibra."""


def fitting_tokens(
    question: Question, level: Level, redundant_slots: int, memory_bytes: float
) -> Iterator[FittingTokens]:
    """Yield what fits, the largest EP groups first, and end with the first whose weights leave no room.

    Args:
        question: the trace, model and machines; its cluster has one EP group, which is the largest.
        level: what relibra knows of a step when it plans.
        redundant_slots: those of relibra.
        memory_bytes: what activations of experts may take on a GPU with the EP groups of the question.
    """
    asked_bytes = _weights_bytes(question)
    for cluster in ep_groups(question.cluster, question.model.num_experts):
        asked = replace(question, cluster=replace(cluster, redundant_slots=redundant_slots))
        before, now = asked.steps(seed=0)
        plain, planned = simulate(now, before, asked.training, _WAYS, level=level, rivals=())
        weights_bytes = _weights_bytes(asked)
        room_bytes = max(0.0, memory_bytes - (weights_bytes - asked_bytes))
        for recomputed in RECOMPUTED:
            size_bytes = (outcome.peaks[recomputed].size_bytes or 1 for outcome in (plain, planned))
            fits = [int(question.tokens_per_rank * room_bytes / size) for size in size_bytes]
            yield FittingTokens(
                ep_size=cluster.num_ranks,
                weights_bytes=weights_bytes,
                recomputed=recomputed,
                plain=fits[0],
                relibra=fits[1],
            )
        if not room_bytes:
            return


def ep_groups(largest: Cluster, num_experts: int) -> Iterator[Cluster]:
    """Yield the ways to split one EP group into equal ones, with whole nodes or inside of nodes, the largest first."""
    num_ranks, node = largest.num_ranks, largest.gpus_per_node
    for size in range(num_ranks, 0, -1):
        whole = size % node == 0 if size >= node else node % size == 0
        if whole and num_ranks % size == 0 and num_experts % size == 0:
            yield replace(
                largest, num_nodes=max(1, size // node), gpus_per_node=min(size, node), num_ep_groups=num_ranks // size
            )


def _weights_bytes(question: Question) -> int:
    model = question.model
    num_experts = model.num_layers * model.num_experts // question.cluster.num_ranks
    return (1 + GRADIENT_BYTES_PER_WEIGHT_BYTE) * num_experts * model.expert_weight_size_bytes
