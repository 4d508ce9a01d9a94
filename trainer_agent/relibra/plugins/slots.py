"""How many redundant slots each rank gets where nobody says it: as many as the free memory of the GPUs has room for."""

import torch
import torch.distributed as dist

from relibra.agent.cells.arrivals import places_of

MOST_SLOTS = 2
"""The evaluation plans with this number. With replay one is enough, because 7 copies balance a node of 8
(docs/optimality.md). Copies that are planned from earlier steps need two, and more help only if the next step is of
another domain."""
SLOTS_ON_CPU = 1
_SHARE = 0.05
"""The part of the free memory that replicas may take. The framework allocates more later, above all activations."""
_GRADIENT_BYTES_PER_WEIGHT_BYTE = 2
"""Weights in bf16, gradients in fp32."""


def slots_that_fit(weight_size_bytes: int, gpus_per_node: int, free_bytes: int | None) -> tuple[int, str]:
    """Return the redundant slots of each rank, and why.

    Args:
        weight_size_bytes: the weights of one expert; 0 if no rank knows them.
        gpus_per_node: ranks of an EP group on one node, each of which may hold replicas of a rank's experts.
        free_bytes: the free memory of the GPU that has the least of it; None if ranks have no GPU.
    """
    if free_bytes is None or not weight_size_bytes:
        return SLOTS_ON_CPU, "there is no GPU memory to measure" if free_bytes is None else "experts have no known size"
    for slots in range(MOST_SLOTS, 0, -1):
        if (size_bytes := _size_bytes(slots, weight_size_bytes, gpus_per_node)) <= _SHARE * free_bytes:
            return slots, f"they take {size_bytes >> 20} MiB of the {free_bytes >> 20} MiB that are free"
    return 0, (
        f"one slot would take {size_bytes >> 20} MiB, more than {_SHARE:.0%} of the {free_bytes >> 20} MiB that are "
        "free, so experts are reordered and not replicated; to have replicas, set slots"
    )


def _size_bytes(slots: int, weight_size_bytes: int, gpus_per_node: int) -> int:
    """Return what `slots` slots take on a rank: weights, gradients that leave, and gradients that arrive."""
    gradient_bytes = weight_size_bytes * _GRADIENT_BYTES_PER_WEIGHT_BYTE
    num_places, _ = places_of(gradient_bytes, slots * (gpus_per_node - 1))
    return slots * (weight_size_bytes + gradient_bytes) + num_places * gradient_bytes


def least_free_bytes() -> int | None:
    """Collective over all ranks: return the free memory of the GPU that has the least, None if a rank has no GPU."""
    mine = None
    if torch.cuda.is_available():
        # Torch keeps memory that no tensor uses, and hands it out again.
        mine = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    told: list[int | None] = [mine] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    known = [size_bytes for size_bytes in told if size_bytes is not None]
    return min(known) if len(known) == len(told) else None
