"""The return of replica gradients to the homes, which add them up.

Gradients travel in the dtype in which they were produced, in windows (`gradient_windows`). The home adds them up in
fp32 and in ascending order of rank, so that the result depends on neither the order of arrival nor the windows.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from relibra.agent.cells.arrivals import NUM_PARTS, Arrivals
from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.gradient_windows import TensorSize, Tile, windows_on
from relibra.agent.cells.replicated_cell import ReplicatedCell
from relibra.agent.experts import Experts, require_gradients
from relibra.agent.transport import ExpertTransport, Handle, Return
from relibra.kernels import grad_accumulate

ARRIVING_BYTES = 1 << 29
"""The most memory of a rank for gradients that arrive from the replicas of a cell. What does not fit travels when the
home adds up what came before, and nothing hides that time."""


class _Window(NamedTuple):
    """A window as this rank takes part in it."""

    transfers: Return
    leaving: Mapping[int, Sequence[Tile]]
    """The parts of this rank's gradients that travel, by redundant slot."""
    arriving: Sequence[tuple[Tile, Tensor]]
    """The tiles of this home, each with the memory for its replicas' gradients, `[R, N]` in the order of the tile."""


class GradientReturns:
    """Begins the returns of a rank. It remembers the transfers of every cell of a step as long as their memory lasts.

    Args:
        transport: between the ranks of the node.
        arrivals: where gradients arrive.
        dtype: the dtype of all gradients; None if each gradient has the dtype of its parameter.
    """

    def __init__(self, transport: ExpertTransport, arrivals: Arrivals, dtype: torch.dtype | None) -> None:
        self._transport, self._arrivals, self._dtype = transport, arrivals, dtype
        self._cells: StepCells | None = None
        self._windows: dict[ReplicatedCell, Sequence[_Window]] = {}
        """The windows of cells of `_cells`, for this version of `arrivals`."""
        self._last: GradientReturn | None = None

    def start(self, cell: ReplicatedCell, own: Sequence[Sequence[Tensor]]) -> "GradientReturn":
        """Begin to bring the gradients of a cell home. All ranks of the node make this call at the same point.

        Args:
            cell: the cell.
            own: the gradients of the replicas on this rank that train, by redundant slot.
        """
        if self._last is not None:
            self._last.move_out()
        if cell.use.cells is not self._cells:
            self._cells, self._windows = cell.use.cells, {}
        windows = self._windows.get(cell)
        if windows is None:
            windows = self._windows_of(cell)
        self._last = GradientReturn(windows, own, cell)
        return self._last

    def settle(self) -> None:
        """Return when nothing is under way: before, the memory of the gradients that leave must not change."""
        if self._last is not None:
            self._last.wait()

    def release(self) -> None:
        """Wait for all gradients under way, and free the memory of arrivals."""
        self.settle()
        self._cells, self._windows, self._last = None, {}, None
        self._arrivals.release()

    def _windows_of(self, cell: ReplicatedCell) -> Sequence[_Window]:
        """Find the windows of a cell, and remember them."""
        rank, one = self._transport.rank, require_gradients(cell.experts.parameters[0])
        dtypes = [self._dtype or parameter.dtype for parameter in one]
        sizes = tuple(TensorSize(parameter.numel(), dt.itemsize) for parameter, dt in zip(one, dtypes, strict=True))
        windows = windows_on(rank, cell.copies, sizes, self._arrivals.window_bytes)
        version, taken = self._arrivals.version, list[_Window]()
        places = self._arrivals.places([window.tiles for window in windows], dtypes)
        for window, rooms in zip(windows, places, strict=True):
            leaving, of_copy = dict[int, list[Tile]](), dict[int, list[Tensor]]()
            for slot, tile in window.leaving:
                leaving.setdefault(slot, []).append(tile)
            for tile, room in rooms:
                for i, row in zip(tile.copies, room.rows, strict=True):
                    of_copy.setdefault(i, []).append(row)
            transfers = Return.of(self._transport, cell.copies, lambda copy, rows=of_copy: rows.get(copy, ()))  # type: ignore[misc]
            arriving = [(tile, room.gradients_RN) for tile, room in rooms if tile.home_rank == rank]
            taken.append(_Window(transfers, leaving, arriving))
        if self._arrivals.version != version:
            self._windows.clear()  # they keep the memory from before
        self._windows[cell] = taken
        return taken


class GradientReturn:
    """The gradients of one cell under way. All ranks of the node make one. It is the handle of all its transfers.

    Args:
        windows: the windows of the cell.
        own: as in `GradientReturns.start`.
        cell: the cell.
    """

    def __init__(self, windows: Sequence[_Window], own: Sequence[Sequence[Tensor]], cell: ReplicatedCell) -> None:
        self._windows, self._cell, self._num_started = windows, cell, 0
        self._own = [[gradient.contiguous().view(-1) for gradient in of_slot] for of_slot in own]
        self._under_way: deque[tuple[Sequence[tuple[Tile, Tensor]], Handle]] = deque()
        """What arrives in each window under way, and the handle of its transfers."""
        for _ in range(NUM_PARTS):
            self._start_next()

    @property
    def arrivals(self) -> Iterator[Tensor]:
        """The memory of all gradients that are on their way to this rank."""
        return (gradients_RN for arriving, _ in self._under_way for _, gradients_RN in arriving)

    def wait(self) -> None:
        """Bring all gradients to their homes, and return when this rank's have left and arrived; see `Handle`.

        Before `add_up`, this breaks the bound on memory: only somebody who needs the memory of the sent gradients calls
        it then.
        """
        while self._num_started < len(self._windows):
            self._start_next()
        for _, handle in self._under_way:
            handle.wait()

    def move_out(self) -> None:
        """Bring all gradients home, and leave their memory to another cell."""
        self.wait()
        for place in range(len(self._under_way)):
            self._take_out(place)

    def add_up(self, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
        """Wait, and add the arrived gradients to `main_grad`.

        Returns:
            For each of `parameters`, the sum of its arrived gradients; None if it has a `main_grad` or none arrived.
        """
        sums: dict[nn.Parameter, Tensor] = {}
        while self._under_way:
            arriving, handle = self._under_way.popleft()
            handle.wait()
            if arriving:
                self._add(arriving, sums)
            self._start_next()
        self._own = []
        if not sums:
            return [None] * len(parameters)
        return [sums[parameter].to(parameter.dtype) if parameter in sums else None for parameter in parameters]

    def _start_next(self) -> None:
        """Begin to move the next window, if there is one. All ranks of the node make this call at the same points."""
        if self._num_started == len(self._windows):
            return
        if len(self._under_way) >= NUM_PARTS:
            self._take_out(len(self._under_way) - NUM_PARTS)  # the next window arrives in its place
        window, own = self._windows[self._num_started], self._own
        handle = window.transfers.start(
            lambda slot: [_part(own[slot][tile.tensor], tile) for tile in window.leaving.get(slot, ())]
        )
        self._under_way.append((window.arriving, handle))
        self._num_started += 1

    def _take_out(self, place: int) -> None:
        """Copy what arrived in one of the windows under way out of the memory of arrivals."""
        arriving, handle = self._under_way[place]
        handle.wait()
        self._under_way[place] = [(tile, gradients_RN.clone()) for tile, gradients_RN in arriving], handle

    def _add(self, arriving: Sequence[tuple[Tile, Tensor]], sums: dict[nn.Parameter, Tensor]) -> None:
        """Add what arrived in a window to `main_grad`, or to the fp32 sum of a parameter without one."""
        totals: list[Tensor] = []
        rounded: list[tuple[Tensor, Tensor]] = []
        home, trained_tensors = self._cell.experts.parameters, self._cell.trained
        met = set[nn.Parameter]()
        for tile, _ in arriving:
            parameter = home[tile.home_slot][trained_tensors[tile.tensor]]
            main_grad: Tensor | None = getattr(parameter, "main_grad", None)
            if main_grad is None and parameter not in sums:
                sums[parameter] = _zeros(parameter)
            target = _part((sums[parameter] if main_grad is None else main_grad).view(-1), tile)
            if target.dtype == torch.float32 and parameter not in met:
                totals.append(target)
            else:  # one kernel adds to all totals at once, so every total needs its own memory
                totals.append(torch.zeros(tile.end - tile.begin, dtype=torch.float32, device=target.device))
                rounded.append((target, totals[-1]))
            met.add(parameter)
        grad_accumulate(totals, [gradients_RN for _, gradients_RN in arriving])
        for target, total in rounded:
            target.add_(total)


def returning_bytes(experts: Iterable[Experts], num_slots: int, num_ranks: int, dtype: torch.dtype | None) -> int:
    """Return the most memory that the gradients of one cell take on a rank, beside the memory of the slots.

    Args:
        experts: the experts of this rank's layers.
        num_slots: redundant slots of a rank.
        num_ranks: ranks of the node. Every other rank may hold `num_slots` replicas of this rank's experts.
        dtype: as in `GradientReturn`. With a fixed dtype, outgoing gradients lie in the slots and need no more memory.
    """
    sizes = [
        sum(
            parameter.numel() * (dtype or parameter.dtype).itemsize
            for parameter in require_gradients(of_layer.parameters[0])
        )
        for of_layer in experts
    ]
    of_slots = max(sizes, default=0) * num_slots
    return min(of_slots * (num_ranks - 1), ARRIVING_BYTES) + (of_slots if dtype is None else 0)


def _part(flat: Tensor, tile: Tile) -> Tensor:
    return flat if tile.end - tile.begin == flat.numel() else flat[tile.begin : tile.end]


def _zeros(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.contiguous_format)
