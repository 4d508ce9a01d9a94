"""The optimizer's state in AReaL's checkpoints for recovery, which AReaL stores by place."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}


class StateByExpert:
    """What AReaL's checkpointer calls of an optimizer, with state that is stored by expert.

    AReaL tells megatron neither the kind of sharding nor that it is about to load, and names by place would do then.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._is_loading = False

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Take state that is asked for in the body as the one that a checkpoint is loaded into."""
        self._is_loading = True
        try:
            yield
        finally:
            self._is_loading = False

    def sharded_state_dict(self, model_state: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the state of the optimizer for `dist_checkpointing`."""
        own = kwargs | {"is_loading": self._is_loading, "metadata": (kwargs.get("metadata") or {}) | _METADATA}
        return self._optimizer.sharded_state_dict(model_state, *args, **own)

    def load_state_dict(self, state: Any) -> None:
        """Load what a checkpoint held."""
        self._optimizer.load_state_dict(state)
