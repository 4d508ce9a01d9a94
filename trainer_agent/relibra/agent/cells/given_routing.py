"""Whether the routers used the routing that the caller gave.

Another replay, installed outside of megatron's `RouterReplay`, decides without asking it, or after it has answered. A
rank that notices goes on until all ranks refuse together: if it raised in a forward, the others would wait for it.

C cells, T tokens of this rank, K top-k, E experts.
"""

import torch
from torch import Tensor

from relibra.agent.cells.replay import NATIVE, LayerRouting
from relibra.errors import Unsupported

_HELD_BYTES = 1 << 24
"""The most memory of routing that waits to be compared. As much again is needed for a moment to compare it."""
ADVICE = (
    "another routing replay is installed on the routers and decides instead; use only one: switch off the replay of "
    "the framework (slime: unset ENABLE_ROUTING_REPLAY), or do not give routing to relibra's agent"
)


class GivenRouting:
    """Compares what the routers chose in one phase with the routing that the caller gave.

    Most cells are compared together, in few operations, so that a cell alone costs none.
    """

    def __init__(self) -> None:
        self._agrees: list[tuple[list[int], Tensor]] = []
        """The layers of some cells, and whether each cell agrees, bool of as many elements."""
        self._not_asked: set[int] = set()
        self._waiting: list[tuple[int, Tensor, Tensor]] = []
        """(layer, experts given, routing map) of the cells that were not compared yet."""
        self._waiting_bytes = 0

    def note_not_asked(self, layer: int) -> None:
        """Note that the router of a layer chose experts without asking for the routing."""
        self._not_asked.add(layer)

    def compare(self, layer: int, given: LayerRouting, routing_map_TE: Tensor, *, drops_tokens: bool = False) -> None:
        """Compare one cell on the device, now or later, without waiting for the device.

        A router that drops tokens need not have chosen all experts given, but none that was not given. Nobody may write
        into the tensors any more.
        """
        expert_TK, has_native = given
        if drops_tokens:
            given_TE = torch.zeros_like(routing_map_TE).scatter(1, expert_TK.clamp(min=0), True)
            agrees_TE = ~routing_map_TE | given_TE | (expert_TK == NATIVE).all(dim=1, keepdim=True)
            self._agrees.append(([layer], agrees_TE.all().view(1)))
        elif has_native:
            agrees_TK = routing_map_TE.gather(1, expert_TK.clamp(min=0)) | (expert_TK == NATIVE)
            self._agrees.append(([layer], agrees_TK.all().view(1)))
        else:
            self._waiting.append((layer, expert_TK, routing_map_TE))
            self._waiting_bytes += expert_TK.nbytes + routing_map_TE.nbytes
            if self._waiting_bytes >= _HELD_BYTES:
                self._compare_waiting()

    def refusal(self) -> Unsupported | None:
        """Read the result from the device: the error to raise if some layer did not use the routing, else None."""
        if self._not_asked:
            layers = sorted(self._not_asked)
            return Unsupported(f"MoE layers {layers} chose experts without asking for the routing given: {ADVICE}")
        self._compare_waiting()
        if not self._agrees:
            return None
        compared = [layer for layers, _ in self._agrees for layer in layers]
        agrees = torch.cat([flag for _, flag in self._agrees]).tolist()
        different = sorted({layer for layer, same in zip(compared, agrees, strict=True) if not same})
        if not different:
            return None
        return Unsupported(f"MoE layers {different} chose other experts than the routing given: {ADVICE}")

    def _compare_waiting(self) -> None:
        """Compare the cells that wait, those of one shape together."""
        by_shape: dict[torch.Size, list[tuple[int, Tensor, Tensor]]] = {}
        for waiting in self._waiting:
            by_shape.setdefault(waiting[1].shape, []).append(waiting)
        self._waiting, self._waiting_bytes = [], 0
        for cells in by_shape.values():
            layers, expert_CTK, routing_map_CTE = zip(*cells, strict=True)
            agrees_CTK = torch.stack(routing_map_CTE).gather(2, torch.stack(expert_CTK))
            self._agrees.append((list(layers), agrees_CTK.flatten(1).all(dim=1)))
