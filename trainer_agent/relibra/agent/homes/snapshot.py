"""The order of experts in a copy of the weights, and the orders of all copies that a framework keeps."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.agent.placement import Placement


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
    copying: Callable[[], AbstractContextManager[Snapshot]],
    restoring: Callable[[Snapshot], AbstractContextManager[None]],
    check_reading: Callable[[str, Snapshot], None],
    present: Snapshot,
) -> dict[str, Snapshot]:
    """Make an object with `backup`, `restore`, `copy` and `get` by tag, as slime's TensorBackuper, keep every order.

    Args:
        backuper: its methods are replaced on the object. Its tags so far have the order `present`.
        copying: `Agent.copying`.
        restoring: `Agent.restoring`.
        check_reading: raises if a copy of an order cannot be read by place.
        present: the order of experts now.

    Returns:
        The order of the copy of every tag, which the methods keep up to date.
    """
    orders = dict.fromkeys(backuper.backup_tags, present)
    plain_backup, plain_copy = backuper.backup, backuper.copy
    plain_restore, plain_get = backuper.restore, backuper.get

    @functools.wraps(plain_backup)
    def backup(tag: str) -> None:
        with copying() as snapshot:
            plain_backup(tag)
        orders[tag] = snapshot

    @functools.wraps(plain_restore)
    def restore(tag: str) -> None:
        with restoring(orders[tag]):
            plain_restore(tag)

    @functools.wraps(plain_copy)
    def copy(*, src_tag: str, dst_tag: str) -> None:
        plain_copy(src_tag=src_tag, dst_tag=dst_tag)
        orders[dst_tag] = orders[src_tag]

    @functools.wraps(plain_get)
    def get(tag: str) -> Any:
        check_reading(f"the backup {tag!r}", orders[tag])
        return plain_get(tag)

    vars(backuper).update(backup=backup, restore=restore, copy=copy, get=get)
    return orders
