"""The memory of replicas: two sides of redundant slots, shared by all layers of a rank and allocated once.

While the experts of one layer read one side, the weights for the next layer arrive in the other side. A cell uses the
same side in forward and backward, so its replicas have the same addresses in both, and tensors that autograd saved in
forward are valid again once the side is filled again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from relibra.agent.experts import Experts
from relibra.kernels.packed import packed_size_bytes, packed_views

NUM_SIDES = 2

Memory = Callable[[int, torch.device], Tensor]
"""Returns as many zero bytes on a device, uint8."""


def zeros(size_bytes: int, device: torch.device) -> Tensor:
    """Return memory that only this rank fills."""
    return torch.zeros(size_bytes, dtype=torch.uint8, device=device)


class Slots:
    """The redundant slots of a rank, each large enough for an expert of any layer.

    Args:
        experts: the experts of this rank, by layer.
        num_slots: redundant slots of a rank.
        device: where the experts are.
        with_gradients: whether to make room for fp32 gradients, too, for kernels that add to `main_grad`.
        memory: allocates the slots of weights, which peers fill; it may be collective.
    """

    def __init__(
        self,
        experts: Mapping[int, Experts],
        num_slots: int,
        device: torch.device,
        *,
        with_gradients: bool,
        memory: Memory = zeros,
    ) -> None:
        self._like = {layer: [_like(parameter) for parameter in of.parameters[0]] for layer, of in experts.items()}
        self._weights = _sides(self._like.values(), num_slots, device, memory)
        self._like_gradients = {layer: [_fp32(weight) for weight in like] for layer, like in self._like.items()}
        self._gradients = _sides(self._like_gradients.values(), num_slots if with_gradients else 0, device, zeros)
        self.has_gradients, self.device = with_gradients, device
        self._views: dict[tuple[int, int, int, bool], list[Tensor]] = {}

    @property
    def gradient_dtype(self) -> torch.dtype | None:
        """The dtype of gradients in the slots. None: slots have no gradients, and each has its parameter's dtype."""
        return torch.float32 if self.has_gradients else None

    @property
    def size_bytes(self) -> int:
        """The size of all slots. It depends on neither the number of layers nor the micro-batches in flight."""
        return self._weights.nbytes + self._gradients.nbytes

    def places(self, side: int, slot: int, layer: int) -> Sequence[Tensor]:
        """Return the memory of an expert of `layer` in one slot, tensor by tensor, to be filled by transfers."""
        return self._view(self._weights, side, slot, layer, self._like[layer])

    def weights(self, side: int, slot: int, layer: int) -> list[Tensor]:
        """Return new tensors with this memory, for autograd, which does not see what transfers write."""
        return [place.data for place in self.places(side, slot, layer)]

    def gradients(self, side: int, slot: int, layer: int) -> Sequence[Tensor]:
        """Return the memory of the fp32 gradients of these weights; empty without room for gradients."""
        if not self.has_gradients:
            return []
        return self._view(self._gradients, side, slot, layer, self._like_gradients[layer])

    def _view(self, memory: Tensor, side: int, slot: int, layer: int, like: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the tensors of a part of `memory`, which are made once."""
        key = side, slot, layer, memory is self._weights
        if key not in self._views:
            self._views[key] = packed_views(memory[side, slot], like)
        return self._views[key]


def _like(tensor: Tensor) -> Tensor:
    # Without memory: a reference to a parameter's memory would keep it on the device when the model is offloaded.
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _fp32(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=torch.float32, device="meta")


def _sides(of_layers: Iterable[Sequence[Tensor]], num_slots: int, device: torch.device, memory: Memory) -> Tensor:
    size_bytes = max(map(packed_size_bytes, of_layers), default=0)
    return memory(NUM_SIDES * num_slots * size_bytes, device).view(NUM_SIDES, num_slots, size_bytes)
