"""The return of replica gradients to the homes, which add them up.

Gradients travel in the dtype in which they were produced, in windows (`gradient_windows`). The home adds them up in
fp32 and in ascending order of rank, so that the result depends on neither the order of arrival nor the windows.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from relibra.agent.cells.arrivals import Arrivals, Room
from relibra.agent.cells.gradient_windows import OwnWindow, TensorSize, Tile, Window, windows_on
from relibra.agent.experts import Experts
from relibra.agent.transport import Copy, ExpertTransport, Handle, return_gradients
from relibra.kernels import grad_accumulate

ARRIVING_BYTES = 1 << 29
"""The most memory of a rank for gradients that arrive from the replicas of a cell. What does not fit travels when the
home adds up what came before, and nothing hides that time."""
_NUM_UNDER_WAY = 2
"""The number of windows under way at a time: one arrives while the home adds up the other."""


@dataclass(slots=True)
class _Arrivals:
    """A window under way."""

    tiles: Sequence[tuple[Tile, Tensor]]
    """The tiles of this home, each with the memory for its replicas' gradients, `[R, N]` in the order of the tile."""
    handle: Handle


class GradientReturn:
    """The gradients of one cell under way. All ranks of the node make one. It is the handle of all its transfers.

    Args:
        transport: between the ranks of the node.
        copies: the replicas of the cell.
        own: the gradients of the replicas on this rank, by redundant slot.
        home: the parameters of this rank, by home slot.
        dtype: the dtype of all gradients; None if each gradient has the dtype of its parameter.
        arriving_bytes: the most memory for gradients that arrive at a rank; equal on all ranks of the node.
        memory: where gradients arrive, if the transport needs places; otherwise they arrive in new memory.
    """

    def __init__(
        self,
        transport: ExpertTransport,
        copies: tuple[Copy, ...],
        own: Sequence[Sequence[Tensor]],
        home: Sequence[Sequence[nn.Parameter]],
        dtype: torch.dtype | None,
        arriving_bytes: int = ARRIVING_BYTES,
        memory: Arrivals | None = None,
    ) -> None:
        self._transport, self._copies, self._memory = transport, copies, memory
        if memory is not None:
            memory.lend(self._move_out)
        self._own = [[gradient.contiguous().view(-1) for gradient in of_slot] for of_slot in own]
        self._home = home
        self._trained = [i for i, each in enumerate(home[0]) if each.requires_grad]
        one = [home[0][i] for i in self._trained]
        self._dtypes = [dtype or each.dtype for each in one]
        sizes = tuple(TensorSize(each.numel(), dt.itemsize) for each, dt in zip(one, self._dtypes, strict=True))
        window_bytes = arriving_bytes // _NUM_UNDER_WAY if memory is None else memory.window_bytes
        self._left = deque(windows_on(transport.rank, copies, sizes, window_bytes))
        self._num_started = 0
        self._under_way = deque[_Arrivals]()
        for _ in range(_NUM_UNDER_WAY):
            self._start_next()

    @property
    def arrivals(self) -> Iterator[Tensor]:
        """The memory of all gradients that are on their way to this rank."""
        return (gradients_RN for window in self._under_way for _, gradients_RN in window.tiles)

    def wait(self) -> None:
        """Bring all gradients to their homes, and return when this rank's have left and arrived; see `Handle`.

        Before `add_up`, this breaks the bound on memory: only somebody who needs the memory of the sent gradients calls
        it then.
        """
        while self._left:
            self._start_next()
        for window in self._under_way:
            window.handle.wait()

    def add_up(self, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
        """Wait, and add the arrived gradients to `main_grad`.

        Returns:
            For each of `parameters`, the sum of its arrived gradients; None if it has a `main_grad` or none arrived.
        """
        sums = dict[nn.Parameter, Tensor]()
        while self._under_way:
            window = self._under_way.popleft()
            window.handle.wait()
            self._add(window, sums)
            del window  # its memory, before the next window takes as much
            self._start_next()
        self._own, self._home = [], []
        return [sums[each].to(each.dtype) if each in sums else None for each in parameters]

    def _start_next(self) -> None:
        """Begin to move the next window, if there is one. All ranks of the node make this call at the same points."""
        if not self._left:
            return
        if self._memory is not None and len(self._under_way) >= _NUM_UNDER_WAY:
            self._take_out(self._under_way[-_NUM_UNDER_WAY])  # the next window arrives in its place
        window, rank = self._left.popleft(), self._transport.rank
        arriving, of_copy = list[tuple[Tile, Tensor]](), dict[int, list[Tensor]]()
        for tile, room in self._rooms(window.tiles):
            if tile.home_rank == rank:
                arriving.append((tile, room.gradients_RN))
            for i, row in zip(tile.copies, room.rows, strict=True):
                of_copy.setdefault(i, []).append(row)
        leaving = self._leaving(window)
        handle = return_gradients(
            self._transport, self._copies, lambda slot: leaving.get(slot, ()), lambda copy: of_copy.get(copy, ())
        )
        self._under_way.append(_Arrivals(arriving, handle))
        self._num_started += 1

    def _move_out(self) -> None:
        """Bring everything home, and leave the transport's memory to another cell."""
        self.wait()
        for window in self._under_way:
            self._take_out(window)

    def _take_out(self, window: _Arrivals) -> None:
        """Copy what arrived out of the transport's memory."""
        window.handle.wait()
        window.tiles = [(tile, gradients_RN.clone()) for tile, gradients_RN in window.tiles]

    def _leaving(self, window: OwnWindow) -> Mapping[int, Sequence[Tensor]]:
        """Return the parts of this rank's gradients that travel in `window`, by redundant slot."""
        leaving: dict[int, list[Tensor]] = {}
        for slot, tile in window.leaving:
            leaving.setdefault(slot, []).append(_part(self._own[slot][tile.tensor], tile))
        return leaving

    def _rooms(self, tiles: Window) -> Iterator[tuple[Tile, Room]]:
        """Yield tiles and their memory: those of this home, or of every home if the transport needs places."""
        if self._memory is not None:
            yield from zip(tiles, self._memory.rooms(tiles, self._num_started, self._dtypes), strict=True)
            return
        for tile in tiles:
            if tile.home_rank == self._transport.rank:
                shape = len(tile.copies), tile.end - tile.begin
                like = self._parameter(tile)
                yield tile, Room.of(torch.empty(shape, dtype=self._dtypes[tile.tensor], device=like.device))

    def _parameter(self, tile: Tile) -> nn.Parameter:
        return self._home[tile.home_slot][self._trained[tile.tensor]]

    def _add(self, window: _Arrivals, sums: dict[nn.Parameter, Tensor]) -> None:
        """Add what arrived in a window to `main_grad`, or to the fp32 sum of a parameter without one."""
        totals, rounded = list[Tensor](), list[tuple[Tensor, Tensor]]()
        for tile, _ in window.tiles:
            parameter = self._parameter(tile)
            main_grad: Tensor | None = getattr(parameter, "main_grad", None)
            if main_grad is not None and main_grad.dtype == torch.float32:
                totals.append(_part(main_grad.view(-1), tile))
            elif main_grad is not None:
                totals.append(torch.zeros(tile.end - tile.begin, dtype=torch.float32, device=main_grad.device))
                rounded.append((_part(main_grad.view(-1), tile), totals[-1]))
            else:
                if parameter not in sums:
                    sums[parameter] = _zeros(parameter)
                totals.append(_part(sums[parameter].view(-1), tile))
        grad_accumulate(totals, [gradients_RN for _, gradients_RN in window.tiles])
        for main_grad, total in rounded:
            main_grad.add_(total)


def returning_bytes(experts: Iterable[Experts], num_slots: int, num_ranks: int, dtype: torch.dtype | None) -> int:
    """Return the most memory that the gradients of one cell take on a rank, beside the memory of the slots.

    Args:
        experts: the experts of this rank's layers.
        num_slots: redundant slots of a rank.
        num_ranks: ranks of the node. Every other rank may hold `num_slots` replicas of this rank's experts.
        dtype: as in `GradientReturn`. With a fixed dtype, outgoing gradients lie in the slots and need no more memory.
    """
    sizes = [
        sum(parameter.numel() * (dtype or parameter.dtype).itemsize for parameter in trained(each.parameters[0]))
        for each in experts
    ]
    of_slots = max(sizes, default=0) * num_slots
    return min(of_slots * (num_ranks - 1), ARRIVING_BYTES) + (of_slots if dtype is None else 0)


def returning(rank: int, copies: Sequence[Copy], home: Sequence[Sequence[nn.Parameter]]) -> list[nn.Parameter]:
    """Return the parameters on `rank` to which gradients of a cell return."""
    slots = sorted({copy.source_slot for copy in copies if copy.source_rank == rank})
    return [parameter for slot in slots for parameter in trained(home[slot])]


def trained(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters that require gradients."""
    return [parameter for parameter in parameters if parameter.requires_grad]


def _part(flat: Tensor, tile: Tile) -> Tensor:
    return flat if tile.end - tile.begin == flat.numel() else flat[tile.begin : tile.end]


def _zeros(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.contiguous_format)
