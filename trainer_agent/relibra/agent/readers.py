"""What reads and writes weights by place, watched as long as experts may move: state dicts, names and checkpoints."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from torch import nn

from relibra.agent.homes.by_place import PlaceNames, check_named_parameters, check_optimizer_state_dicts
from relibra.agent.homes.homes import Homes
from relibra.agent.homes.order import check_state_dicts


def watch_readers(
    chunks: Sequence[nn.Module], optimizer: Any, layers: Sequence[Any], places: PlaceNames, homes: Homes
) -> Callable[[], None]:
    """Refuse what would read or write an expert under the name of another one. Return the undoing.

    Args:
        chunks: the model chunks of this rank, with or without wrappers.
        optimizer: their optimizer, or None.
        layers: the MoE layers that execute plans.
        places: knows whether names by place are right.
        homes: where the experts live.
    """
    from relibra.agent import megatron

    undo = ExitStack()
    for chunk in chunks:
        inside = {id(module) for module in chunk.modules()}
        undo.callback(
            check_state_dicts(
                megatron.unwrap(chunk),
                [layer.experts for layer in layers if id(layer) in inside],
                places.order,
                megatron.NotStored,
                places.check_reading,
                places.check_writing,
            )
        )
    levels = [level for chunk in chunks for level in megatron.levels(chunk)]
    undo.callback(check_named_parameters(levels, places.check_names))
    undo.callback(megatron.guard_checkpoints(optimizer))
    undo.callback(megatron.plan_every_save(places.check_local_checkpoint))
    if optimizer is not None:
        undo.callback(
            check_optimizer_state_dicts(
                optimizer,
                places.check_reading,
                places.check_writing_state,
                homes.check_at_home,
                places.expect_state,
                places.forget_sharded_names,
            )
        )
    return undo.close
