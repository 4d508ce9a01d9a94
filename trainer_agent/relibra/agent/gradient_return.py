"""Gradients of replicas on their way home, and how they are added there.

They travel as they were produced. The home adds them up in fp32 and in ascending order of rank, so that the result does
not depend on who was first.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from relibra.agent.cells import Copy
from relibra.agent.transport import ExpertTransport, Parcel
from relibra.kernels import grad_accumulate


class GradientReturn:
    """One cell's gradients under way; made on all ranks of the node.

    Args:
        transport: of the node.
        copies: of the cell.
        own: by redundant slot, the gradients of the replicas on this rank.
        home: by home slot, parameters.
        dtype: of the gradients; None where each has that of its parameter.
    """

    def __init__(
        self,
        transport: ExpertTransport,
        copies: Sequence[Copy],
        own: Sequence[Sequence[Tensor]],
        home: Sequence[Sequence[nn.Parameter]],
        dtype: torch.dtype | None,
    ) -> None:
        rank, sends, receives = transport.rank, list[Parcel](), list[Parcel]()
        self._arrivals: dict[nn.Parameter, list[Tensor]] = {}
        for copy in copies:
            if copy.destination_rank == rank:
                sends += [Parcel(copy.source_rank, each.contiguous()) for each in own[copy.destination_slot]]
            if copy.source_rank == rank:
                for parameter in trained(home[copy.source_slot]):
                    arrival = torch.empty_like(parameter, dtype=dtype, memory_format=torch.contiguous_format)
                    self._arrivals.setdefault(parameter, []).append(arrival)
                    receives.append(Parcel(copy.destination_rank, arrival))
        self.handle = transport.start(sends, receives)

    def add_up(self, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
        """Wait, and add what arrived to `main_grad`; return it for those of `parameters` that have none."""
        self.handle.wait()
        rest: list[Tensor | None] = []
        for parameter in parameters:
            first, *others = self._arrivals[parameter]
            total = first.float() if others else first
            if others:
                grad_accumulate([total], [others])
            main_grad = getattr(parameter, "main_grad", None)
            if main_grad is not None and main_grad.dtype == torch.float32:
                grad_accumulate([main_grad], [[total]])
            elif main_grad is not None:
                main_grad.add_(total)
            rest.append(None if main_grad is not None else total.to(parameter.dtype))
        return rest


def returning(rank: int, copies: Sequence[Copy], home: Sequence[Sequence[nn.Parameter]]) -> list[nn.Parameter]:
    """Return the parameters on this rank to which gradients of a cell return."""
    slots = sorted({copy.source_slot for copy in copies if copy.source_rank == rank})
    return [parameter for slot in slots for parameter in trained(home[slot])]


def trained(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Return those that want gradients."""
    return [parameter for parameter in parameters if parameter.requires_grad]
