"""Routing replay by micro-batch, not by queue: the forward of a micro-batch and its recomputation use the same rows.

L MoE layers, T tokens of this rank, K top-k, E experts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relibra.errors import InvalidInput
from relibra.planning import Model

NATIVE = -1
"""A row of this value leaves the token to the router."""


class LayerRouting(NamedTuple):
    """The routing of one layer for the micro-batch that runs now."""

    experts_TK: Tensor
    """int64, on the device of the router."""
    has_native: bool
    """Whether some rows are `NATIVE`. The host knows without reading the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenExperts:
    """The routing of one micro-batch, checked."""

    routed_LTK: Tensor
    """A copy in the smallest dtype that holds it."""
    has_native_L: tuple[bool, ...]
    """Whether a layer has `NATIVE` rows."""

    def on(self, device: torch.device) -> "GivenExperts":
        """Return the routing of all layers on a device, in one copy that the host does not wait for."""
        return replace(self, routed_LTK=self.routed_LTK.to(device, non_blocking=True))

    def of(self, layer: int) -> LayerRouting:
        """Return the routing of one layer."""
        return LayerRouting(self.routed_LTK[layer].long(), self.has_native_L[layer])


def check_routing(routed_LTK: Tensor, model: Model, device: torch.device) -> GivenExperts:
    """Check the routing, and copy it, to be kept until its phase ends.

    The caller may write other routing into its tensor, and a slice does not keep the whole batch in memory. Routing
    from the host for a GPU is kept in pinned memory, from which it travels while the host goes on. If the routing is on
    a GPU, the host waits for the check once.

    Args:
        routed_LTK: any integer dtype; rows of K distinct experts, or of K times `NATIVE`.
        model: the registered model.
        device: where the model trains.

    Raises:
        InvalidInput: the shape or dtype is wrong, or a row names an expert that does not exist, or one expert twice.
            Megatron's router would silently lose the tokens of such rows.
    """
    expected = f"integers of shape ({model.num_layers} MoE layers, tokens, top-k {model.top_k})"
    shape = tuple(routed_LTK.shape)
    if len(shape) != 3 or (shape[0], shape[2]) != (model.num_layers, model.top_k):
        raise InvalidInput.of("routing", expected=expected, got=f"shape {shape}")
    if routed_LTK.is_floating_point() or routed_LTK.is_complex() or routed_LTK.dtype == torch.bool:
        raise InvalidInput.of("routing", expected=expected, got=str(routed_LTK.dtype))
    smallest = torch.int16 if model.num_experts <= torch.iinfo(torch.int16).max else torch.int32
    is_pinned = routed_LTK.device.type == "cpu" and device.type == "cuda"
    checked_LTK = torch.empty(shape, dtype=smallest, device=routed_LTK.device, pin_memory=is_pinned).copy_(routed_LTK)
    # A number that does not fit wraps around to another one, perhaps to that of an expert.
    fits_LTK = checked_LTK == routed_LTK if routed_LTK.dtype.is_signed else checked_LTK == routed_LTK.long()
    fits_LT = (fits_LTK & ((checked_LTK >= 0) | routed_LTK.dtype.is_signed)).all(dim=-1)
    sorted_LTK = checked_LTK.sort(dim=-1).values
    native_LT = (checked_LTK == NATIVE).all(dim=-1)
    exists_LT = ((checked_LTK >= 0) & (checked_LTK < model.num_experts)).all(dim=-1)
    distinct_LT = (sorted_LTK[..., 1:] != sorted_LTK[..., :-1]).all(dim=-1)
    wrong_LT = ~(fits_LT & (native_LT | (exists_LT & distinct_LT)))
    is_wrong_L, has_native_L = torch.stack([wrong_LT.any(dim=1), native_LT.any(dim=1)]).tolist()
    if any(is_wrong_L):
        layer, token = torch.nonzero(wrong_LT)[0].tolist()
        raise InvalidInput.of(
            f"routing[{layer}, {token}]",
            expected=f"{model.top_k} distinct experts below {model.num_experts}, or {NATIVE} everywhere",
            got=routed_LTK[layer, token].tolist(),
        )
    return GivenExperts(routed_LTK=checked_LTK, has_native_L=tuple(has_native_L))


def experts_to_replay(replay: Any) -> Tensor | None:
    """Return the experts `[T, K]` that a `RouterReplay` has for its router's next forward, -1 in rows that it leaves.

    Args:
        replay: megatron's, or one with the same fields and a mask of rows, as verl's.

    Returns:
        None if the router decides alone.
    """
    action = getattr(getattr(replay, "router_replay_action", None), "value", None)
    experts_TK: Tensor | None = replay.target_topk_idx if action == "replay_forward" else None
    mask = getattr(replay, "target_replay_mask", None)
    if experts_TK is None or mask is None:
        return experts_TK
    return experts_TK.masked_fill(~mask.to(experts_TK.device, torch.bool).view(-1, 1), -1)


class MicroBatchReplay:
    """The stand-in for the `RouterReplay` of one router.

    Args:
        plain: the router's own replay, which decides if the micro-batch has no routing; None if the router has none.
        routing: returns the routing of the layer for the micro-batch that runs now, if it has any.
    """

    def __init__(self, plain: Any, routing: Callable[[], LayerRouting | None]) -> None:
        self._plain, self._routing = plain, routing

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # during a copy, `_plain` does not exist yet
            raise AttributeError(name)
        return getattr(self._plain, name)

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Callable[..., tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the differentiable scores `[T, K]` of the chosen experts, and the experts `[T, K]`.

        Raises:
            InvalidInput: the routing has rows for another number of tokens.
        """
        assert default_compute_topk is not None
        given = self._routing()
        if given is None:
            if self._plain is None:
                return default_compute_topk(scores, topk, num_groups, group_topk)
            chosen: tuple[Tensor, Tensor] = self._plain.get_replay_topk(
                scores, topk, num_groups, group_topk, default_compute_topk
            )
            return chosen
        routed_TK = given.experts_TK
        if len(routed_TK) != len(scores):
            raise InvalidInput.of("routing", expected=f"rows for {len(scores)} tokens", got=f"{len(routed_TK)} rows")
        if given.has_native:
            _, own_TK = default_compute_topk(scores, topk, num_groups, group_topk)
            routed_TK = torch.where(routed_TK == NATIVE, own_TK, routed_TK)
        return scores.gather(1, routed_TK), routed_TK
