"""The parts of host memory that this process has pinned, so that its GPU reads them without the host.

To pin all weights of a node in each of its processes takes as many registrations of the same pages as the node has
ranks. A rank reads only the experts of its own replicas, so it pins these, when it first reads them.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable

from torch import Tensor

log = logging.getLogger(__name__)


class Pins:
    """Pinned blocks of memory, those that were used last at the end.

    Args:
        register: pins a block, and raises if it cannot.
        unregister: ends what `register` did, by the block's address.
        limit_bytes: how much stays pinned after `trim`.
    """

    def __init__(
        self, register: Callable[[Tensor], object], unregister: Callable[[int], object], limit_bytes: int
    ) -> None:
        self._register, self._unregister, self._limit_bytes = register, unregister, limit_bytes
        self._pinned: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._is_refused = False

    @property
    def pinned_bytes(self) -> int:
        """How much is pinned now."""
        return sum(block.nbytes for block in self._pinned.values())

    def pin(self, name: Hashable, block: Tensor) -> None:
        """Pin a block, or warn once that reads of such blocks are slow and make the host wait.

        Args:
            name: tells blocks apart.
            block: starts and ends at a page.
        """
        if name in self._pinned:
            self._pinned.move_to_end(name)
        elif not self._is_refused:
            try:
                self._register(block)
            except Exception as error:
                self._is_refused = True
                log.warning(
                    "no more host memory can be pinned beside %d bytes (%s): replicas from the host copy arrive later "
                    "and make the host wait; raise the limit of locked memory (ulimit -l), or do without host_copy",
                    self.pinned_bytes,
                    error,
                )
            else:
                self._pinned[name] = block

    def trim(self) -> None:
        """Unpin what was used longest ago, until the limit is met. Nobody may read or write pinned memory meanwhile."""
        while self.pinned_bytes > self._limit_bytes:
            _, block = self._pinned.popitem(last=False)
            self._unregister(block.data_ptr())
            self._is_refused = False

    def clear(self) -> None:
        """Unpin everything."""
        while self._pinned:
            _, block = self._pinned.popitem()
            self._unregister(block.data_ptr())
