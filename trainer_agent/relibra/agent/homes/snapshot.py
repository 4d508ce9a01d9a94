"""The order of experts in a copy of the weights, and the one order of all copies that a framework keeps."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.agent.homes.replaced_method import replace_method
from relibra.planning.places import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The order of the experts in weights that were copied by name. Keep one for every copy; it holds no weights."""

    placement: Placement

    @property
    def expert_of_place_LE(self) -> NDArray[np.int32]:
        """The logical expert at every place of the copy, int32 `[L, E]`; see `Agent.expert_of_place_LE`."""
        return self.placement.expert_of_place_LE


def follow(
    backuper: Any,
    *,
    at_original_places: Callable[[], AbstractContextManager[None]],
    restoring: Callable[[Snapshot], AbstractContextManager[None]],
    original: Snapshot,
) -> None:
    """Make an object with `backup` and `restore` by tag, as slime's TensorBackuper, keep every copy in one order.

    Args:
        backuper: its two methods are replaced on the object. Its copies so far have the order `original`.
        at_original_places: `Agent.at_original_places`.
        restoring: `Agent.restoring`.
        original: the order of all copies.
    """
    plain_backup, plain_restore = backuper.backup, backuper.restore

    def backup(*args: Any, **kwargs: Any) -> Any:
        with at_original_places():
            return plain_backup(*args, **kwargs)

    def restore(*args: Any, **kwargs: Any) -> Any:
        with restoring(original):
            return plain_restore(*args, **kwargs)

    replace_method(backuper, "backup", backup)
    replace_method(backuper, "restore", restore)
