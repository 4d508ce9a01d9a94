"""How many tokens chose each expert, read from what a router returns.

T tokens, K top-k, E experts. Leading dimensions of tokens may be any.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from relibra.errors import Unsupported


def chosen_experts(output: Any, num_experts: int) -> Tensor:
    """Return the choices in the output of a router: a bool map `[T, E]`, or the ids of experts `[T, K]`.

    Megatron's routers return such a map; those of torchtitan, prime-rl and of Hugging Face's newer models return ids.

    Raises:
        Unsupported: the output has neither, as that of a router that is a mere projection.
    """
    tensors = list(_tensors(output))
    for tensor in tensors:
        if tensor.dtype is torch.bool and tensor.dim() >= 2 and tensor.shape[-1] == num_experts:
            return tensor
    for tensor in tensors:
        if not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool) and tensor.dim() >= 2:
            return tensor
    got = ", ".join(f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in tensors)
    raise Unsupported(
        f"expected a router that returns a bool map [tokens, {num_experts}] or ids of experts [tokens, top_k], got "
        f"{got or type(output).__name__}; say how to read it: observe(..., chosen=lambda output: ids)"
    )


def count_choices(chosen: Tensor, num_experts: int) -> Tensor:
    """Return how many tokens chose each expert, int64 `[E]`, without waiting for the device. Negative ids are none."""
    if chosen.dtype is torch.bool:
        return chosen.reshape(-1, num_experts).sum(dim=0)
    ids = chosen.reshape(-1).to(torch.int64)
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, ids.where(ids >= 0, num_experts), torch.ones_like(ids))
    return counts[:num_experts]


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Iterable) and not isinstance(output, str | bytes):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _tensors(part)
