"""AReaL: `balanced` turns on the plug-in for its trainer. `response_routing` reads what AReaL does not replay."""

from typing import Any

from relibra.plugins.areal.response import response_routing

__all__ = ["balanced", "response_routing"]


def balanced(trainer: type[Any]) -> type[Any]:
    """Return a subclass of a trainer of AReaL, `PPOTrainer` or your own, whose actor is balanced: the plug-in."""
    from relibra.plugins.areal.trainer import balanced as balanced_trainer

    return balanced_trainer(trainer)
