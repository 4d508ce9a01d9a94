"""Shapes that a replay tells, handed to megatron's dispatchers, so that the host does not wait for the device.

- The all-to-all counts rows on the device, gathers the counts, copies them to the host and waits (`preprocess`, then
  `_maybe_dtoh_and_synchronize`). It takes the same counts from the host instead.
- HybridEP waits in its dispatch for the number of rows that it receives. If it gets `num_permuted_tokens`, it does not
  wait, and takes the rows of each expert from the host, as it does when it pads rows to a capacity.

DeepEP reads this number inside its own package, and the all-gather counts what it has received: both wait as before.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch import Tensor

from relibra.agent.cells.shapes_ahead import CellShapes, DispatchRanks
from relibra.agent.megatron.dispatchers import is_hybridep, manager_of


def dispatch_ranks(dispatcher: Any, config: Any, ep_rank: int) -> DispatchRanks | None:
    """Return the ranks that must know the shapes of a dispatcher; None if it cannot take them.

    Routers that drop tokens, and dispatchers that pad them, change the counts that a replay tells.
    """
    takes = isinstance(dispatcher, MoEAlltoAllTokenDispatcher) or (is_hybridep(dispatcher) and not config.fp8)
    changes = config.moe_expert_capacity_factor is not None or config.moe_router_padding_for_quantization
    if not takes or changes or dispatcher.tp_ep_group.size() == 1:
        return None
    return DispatchRanks(group=lambda: dispatcher.tp_ep_group, num_parts=dispatcher.tp_size, ep_rank=ep_rank)


def take_shapes(dispatcher: Any, shapes: Callable[[], CellShapes | None]) -> Callable[[], None]:
    """Let a dispatcher take its shapes from `shapes` if that returns some. Return a function that undoes this."""
    if isinstance(dispatcher, MoEAlltoAllTokenDispatcher):
        return _in_place(dispatcher, "preprocess", lambda plain: _preprocess(dispatcher, plain, shapes))
    if is_hybridep(dispatcher):
        manager = manager_of(dispatcher)
        undoing = ExitStack()
        undoing.callback(_in_place(manager, "setup_metadata", lambda plain: _setup_metadata(manager, plain, shapes)))
        undoing.callback(_in_place(manager, "dispatch", lambda plain: _dispatch(manager, plain)))
        return undoing.close
    return lambda: None


def _preprocess(
    dispatcher: Any, plain: Callable[[Tensor], Tensor], shapes: Callable[[], CellShapes | None]
) -> Callable[[Tensor], Tensor]:
    def preprocess(routing_map: Tensor) -> Tensor:
        known = shapes()
        if known is None:
            return plain(routing_map)
        received_TRS = known.received_TRS
        received_TR = received_TRS.sum(dim=2)
        dispatcher.num_out_tokens = int(known.sent_R.sum())
        dispatcher.input_splits = known.sent_R
        dispatcher.output_splits = received_TR[dispatcher.tp_rank].numpy()
        dispatcher.output_splits_tp = received_TR.sum(dim=1).numpy()
        if dispatcher.num_local_experts > 1:
            sorting = known.received_on_device_TRS if dispatcher.config.moe_permute_fusion else received_TRS
            dispatcher.num_global_tokens_per_local_expert = sorting.view(-1, dispatcher.num_local_experts)
        dispatcher.cuda_sync_point = "no_sync"  # until the plain one runs again
        tokens_per_expert: Tensor = received_TRS.sum(dim=(0, 1))
        return tokens_per_expert

    return preprocess


def _setup_metadata(
    manager: Any, plain: Callable[[Tensor, Tensor], None], shapes: Callable[[], CellShapes | None]
) -> Callable[[Tensor, Tensor], None]:
    def setup_metadata(routing_map: Tensor, probs: Tensor) -> None:
        plain(routing_map, probs)
        known = shapes()
        if known is not None:
            manager.tokens_per_expert = known.received_TRS.sum(dim=(0, 1))
            manager.num_permuted_tokens = int(torch.sum(manager.tokens_per_expert))

    return setup_metadata


def _dispatch(manager: Any, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def dispatch(*args: Any, **named: Any) -> Tensor:
        if manager.num_permuted_tokens is None:
            return plain(*args, **named)
        told = manager.tokens_per_expert, manager.num_permuted_tokens
        dispatched = plain(*args, **named)
        manager.tokens_per_expert, manager.num_permuted_tokens = told  # megatron-core 0.16 takes the device's
        return dispatched

    return dispatch


def _in_place(owner: Any, name: str, replacement: Callable[[Any], Callable[..., Any]]) -> Callable[[], None]:
    setattr(owner, name, replacement(getattr(owner, name)))
    return lambda: delattr(owner, name)
