"""The return of replica gradients to the homes, which add them up.

Gradients travel in the dtype in which they were produced. The home adds them up in fp32 and in ascending order of rank,
so that the result does not depend on the order of arrival.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from relibra.agent.experts import Experts
from relibra.agent.transport import Copy, ExpertTransport, return_gradients
from relibra.kernels import grad_accumulate


class GradientReturn:
    """The gradients of one cell under way. All ranks of the node make one.

    Args:
        transport: between the ranks of the node.
        copies: the replicas of the cell.
        own: the gradients of the replicas on this rank, by redundant slot.
        home: the parameters of this rank, by home slot.
        dtype: the dtype of all gradients; None if each gradient has the dtype of its parameter.
    """

    def __init__(
        self,
        transport: ExpertTransport,
        copies: tuple[Copy, ...],
        own: Sequence[Sequence[Tensor]],
        home: Sequence[Sequence[nn.Parameter]],
        dtype: torch.dtype | None,
    ) -> None:
        self._arrivals: dict[nn.Parameter, list[Tensor]] = {}
        arrival_of_copy: dict[int, list[Tensor]] = {}
        for i, copy in enumerate(copies):
            if copy.source_rank == transport.rank:
                parameters = trained(home[copy.source_slot])
                arrival_of_copy[i] = [_room(each, dtype) for each in parameters]
                for parameter, arrival in zip(parameters, arrival_of_copy[i], strict=True):
                    self._arrivals.setdefault(parameter, []).append(arrival)

        def redundant(slot: int) -> Sequence[Tensor]:
            return [gradient.contiguous() for gradient in own[slot]]

        self.handle = return_gradients(transport, copies, redundant, arrival_of_copy.__getitem__)

    def add_up(self, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
        """Wait, and add the arrived gradients to `main_grad`.

        Returns:
            For each of `parameters`, None if it has a `main_grad`, else the sum of its arrived gradients.
        """
        self.handle.wait()
        main_grads = [getattr(parameter, "main_grad", None) for parameter in parameters]
        sums = [
            main_grad if main_grad is not None and main_grad.dtype == torch.float32 else _zeros(parameter)
            for parameter, main_grad in zip(parameters, main_grads, strict=True)
        ]
        grad_accumulate(sums, [self._arrivals[parameter] for parameter in parameters])
        rest: list[Tensor | None] = []
        for parameter, main_grad, total in zip(parameters, main_grads, sums, strict=True):
            if main_grad is not None and main_grad is not total:
                main_grad.add_(total)
            rest.append(total.to(parameter.dtype) if main_grad is None else None)
        return rest


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
    return max(sizes, default=0) * num_slots * (num_ranks - (dtype is not None))


def returning(rank: int, copies: Sequence[Copy], home: Sequence[Sequence[nn.Parameter]]) -> list[nn.Parameter]:
    """Return the parameters on `rank` to which gradients of a cell return."""
    slots = sorted({copy.source_slot for copy in copies if copy.source_rank == rank})
    return [parameter for slot in slots for parameter in trained(home[slot])]


def trained(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters that require gradients."""
    return [parameter for parameter in parameters if parameter.requires_grad]


def _room(parameter: nn.Parameter, dtype: torch.dtype | None) -> Tensor:
    return torch.empty_like(parameter, dtype=dtype, memory_format=torch.contiguous_format)


def _zeros(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.contiguous_format)
