"""Whether the routers used the routing that the caller gave.

Another replay, installed outside of megatron's `RouterReplay`, decides without asking it, or after it has answered. A
rank that notices goes on until all ranks refuse together: if it raised in a forward, the others would wait for it.

T tokens of this rank, K top-k, E experts.
"""

import torch
from torch import Tensor

from relibra.agent.cells.replay import NATIVE, LayerRouting
from relibra.errors import Unsupported

ADVICE = (
    "another routing replay is installed on the routers and decides instead; use only one: switch off the replay of "
    "the framework (slime: unset ENABLE_ROUTING_REPLAY), or do not give routing to relibra's agent"
)


class GivenRouting:
    """Compares what the routers chose in one phase with the routing that the caller gave."""

    def __init__(self) -> None:
        self._agrees: list[tuple[int, Tensor]] = []
        self._not_asked: set[int] = set()

    def note_not_asked(self, layer: int) -> None:
        """Note that the router of a layer chose experts without asking for the routing."""
        self._not_asked.add(layer)

    def compare(self, layer: int, given: LayerRouting, routing_map_TE: Tensor, *, drops_tokens: bool = False) -> None:
        """Compare one cell on the device, without waiting for it.

        A router that drops tokens need not have chosen all experts given, but none that was not given.
        """
        expert_TK, has_native = given
        if drops_tokens:
            given_TE = torch.zeros_like(routing_map_TE).scatter(1, expert_TK.clamp(min=0), True)
            agrees_TE = ~routing_map_TE | given_TE | (expert_TK == NATIVE).all(dim=1, keepdim=True)
            self._agrees.append((layer, agrees_TE.all()))
        elif has_native:
            agrees_TK = routing_map_TE.gather(1, expert_TK.clamp(min=0)) | (expert_TK == NATIVE)
            self._agrees.append((layer, agrees_TK.all()))
        else:
            self._agrees.append((layer, routing_map_TE.gather(1, expert_TK).all()))

    def refusal(self) -> Unsupported | None:
        """Read the result from the device: the error to raise if some layer did not use the routing, else None."""
        if self._not_asked:
            layers = sorted(self._not_asked)
            return Unsupported(f"MoE layers {layers} chose experts without asking for the routing given: {ADVICE}")
        if not self._agrees:
            return None
        agrees = torch.stack([each for _, each in self._agrees]).tolist()
        layers = sorted({layer for (layer, _), same in zip(self._agrees, agrees, strict=True) if not same})
        return (
            Unsupported(f"MoE layers {layers} chose other experts than the routing given: {ADVICE}") if layers else None
        )
