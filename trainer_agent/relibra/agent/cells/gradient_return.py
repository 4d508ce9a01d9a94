"""The return of replica gradients to the homes, which add them up.

Gradients travel in the dtype in which they were produced, in turns (`arrivals`). The home adds them up in fp32 and in
ascending order of rank, so that the result depends on neither the order of arrival nor the turns.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from relibra.agent.cells.arrivals import Arrivals
from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.replicated_cell import ReplicatedCell
from relibra.agent.transport import ExpertTransport, Handle, Return
from relibra.kernels import grad_accumulate

Arriving = Sequence[tuple[int, Sequence[Tensor]]]
"""What arrives at this home in a turn: the home slot of the expert, and its gradients from a replica."""


class _Turn(NamedTuple):
    """A turn as this rank takes part in it."""

    transfers: Return
    arriving: Arriving
    """The replicas of an expert in ascending order of rank."""


class GradientReturns:
    """Begins the returns of a rank. It remembers the transfers of every cell of a step as long as their memory lasts.

    Args:
        transport: between the ranks of the node.
        arrivals: where gradients arrive.
    """

    def __init__(self, transport: ExpertTransport, arrivals: Arrivals) -> None:
        self._transport, self.arrivals = transport, arrivals
        self._cells: StepCells | None = None
        self._turns: dict[ReplicatedCell, Sequence[_Turn]] = {}
        """The turns of cells of `_cells`."""
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
            self._cells, self._turns = cell.use.cells, {}
        if cell not in self._turns:
            self._turns[cell] = self._turns_of(cell)
        self._last = GradientReturn(self._turns[cell], self.arrivals.num_turns, own, cell)
        return self._last

    def settle(self) -> None:
        """Return when nothing is under way: before, the memory of the gradients that leave must not change."""
        if self._last is not None:
            self._last.wait()

    def release(self) -> None:
        """Wait for all gradients under way, and free the memory of arrivals."""
        self.settle()
        self._cells, self._turns, self._last = None, {}, None
        self.arrivals.release()

    def _turns_of(self, cell: ReplicatedCell) -> Sequence[_Turn]:
        found = list[_Turn]()
        for turn in self.arrivals.turns(cell.copies, cell.experts):
            copies, places = tuple(cell.copies[i] for i in turn), list(turn.values())
            transfers = Return.of(self._transport, copies, places.__getitem__)
            arrive = zip(copies, places, strict=True)
            mine = [(copy.source_slot, place) for copy, place in arrive if copy.source_rank == self._transport.rank]
            found.append(_Turn(transfers, mine))
        return found


class GradientReturn:
    """The gradients of one cell under way. All ranks of the node make one. It is the handle of all its transfers.

    Args:
        turns: the turns of the cell.
        most_under_way: the most turns that may be under way.
        own: as in `GradientReturns.start`.
        cell: the cell.
    """

    def __init__(
        self, turns: Sequence[_Turn], most_under_way: int, own: Sequence[Sequence[Tensor]], cell: ReplicatedCell
    ) -> None:
        self._turns, self._most_under_way, self._cell, self._num_started = turns, most_under_way, cell, 0
        self._own = [[gradient.contiguous() for gradient in of_slot] for of_slot in own]
        self._under_way: deque[tuple[Arriving, Handle]] = deque()
        """What arrives in each turn under way, and the handle of its transfers."""
        for _ in range(most_under_way):
            self._start_next()

    def wait(self) -> None:
        """Bring all gradients to their homes, and return when this rank's have left and arrived; see `Handle`.

        Before `add_up`, this breaks the bound on memory: only somebody who needs the memory of the sent gradients calls
        it then.
        """
        while self._num_started < len(self._turns):
            self._start_next()
        for _, handle in self._under_way:
            handle.wait()

    def move_out(self) -> None:
        """Bring all gradients home, and leave their memory to another cell."""
        self.wait()
        for number in range(len(self._under_way)):
            self._take_out(number)

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
        for parameter, total in list(sums.items()):
            if (main_grad := _main_grad(parameter)) is not None:
                main_grad.add_(total)
                del sums[parameter]
        return [sums[parameter].to(parameter.dtype) if parameter in sums else None for parameter in parameters]

    def _start_next(self) -> None:
        """Begin the next turn, if there is one. All ranks of the node make this call at the same points."""
        if self._num_started == len(self._turns):
            return
        if len(self._under_way) >= self._most_under_way:
            self._take_out(len(self._under_way) - self._most_under_way)  # the next turn arrives in its places
        turn = self._turns[self._num_started]
        self._under_way.append((turn.arriving, turn.transfers.start(self._own.__getitem__)))
        self._num_started += 1

    def _take_out(self, number: int) -> None:
        """Copy what arrived in one of the turns under way out of its places."""
        arriving, handle = self._under_way[number]
        handle.wait()
        self._under_way[number] = [(slot, [each.clone() for each in place]) for slot, place in arriving], handle

    def _add(self, arriving: Arriving, sums: dict[nn.Parameter, Tensor]) -> None:
        """Add what arrived in a turn to `main_grad`, or to the fp32 sum of a parameter without one in fp32."""
        added: dict[nn.Parameter, list[Tensor]] = {}
        home, trained_tensors = self._cell.experts.parameters, self._cell.trained
        for slot, gradients in arriving:
            for tensor, gradient in zip(trained_tensors, gradients, strict=True):
                added.setdefault(home[slot][tensor], []).append(gradient)
        grad_accumulate([_total(parameter, sums) for parameter in added], list(added.values()))


def _main_grad(parameter: nn.Parameter) -> Tensor | None:
    main_grad: Tensor | None = getattr(parameter, "main_grad", None)
    return main_grad


def _total(parameter: nn.Parameter, sums: dict[nn.Parameter, Tensor]) -> Tensor:
    """Return the tensor to which the gradients of a parameter are added."""
    main_grad = _main_grad(parameter)
    if main_grad is not None and main_grad.dtype == torch.float32:
        return main_grad
    if parameter not in sums:
        sums[parameter] = torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.contiguous_format)
    return sums[parameter]
