"""The reorder: move experts with their fp32 copies and optimizer moments to new homes, on all ranks or on none.

A reorder runs between `optimizer.step()` and the next forward. It does not move gradients, because they are zeroed or
overwritten before the next backward.

Every wave is packed, exchanged and verified, and ranks write its experts into their slots only after all ranks of the
job have verified theirs. All ranks agree once in a wave: on its experts, and on whether the wave before was written. So
the old contents of that wave stay packed until then. If a rank fails, all ranks put them back, and undo the waves
before.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.homes.expert_tensors import ExpertTensors
from relibra.agent.homes.transfer import Transfer
from relibra.agent.plans.agreement import together
from relibra.agent.transport import ExpertTransport
from relibra.errors import RelibraError
from relibra.planning.waves import Wave, inverse

_ADVICE = "do not use or save the weights in memory; restart from the last checkpoint"


@torch.no_grad()
def reorder(
    waves: Sequence[Wave],
    expert_tensors: ExpertTensors,
    *,
    transport: ExpertTransport,
    everyone: dist.ProcessGroup,
    device: torch.device,
) -> tuple[int, str | None]:
    """Collective over the job: carry out `waves`. Return the bytes this rank sent, and None or why nothing moved.

    Args:
        waves: the waves of this rank's stage; all stages have equally many.
        expert_tensors: the tensors that each move carries.
        transport: between the ranks of the stage, which exchange experts.
        everyone: all ranks of the job, which decide together, over gloo.
        device: where the message buffers live.

    Raises:
        RelibraError: a move failed and the experts could not be put back, or a rank is gone. No rank may continue.
    """
    memory = list[Tensor]()

    def carry_out(waves: Sequence[Wave]) -> tuple[int, int, str | None]:
        transfers = list[Transfer]()

        def make_room() -> None:
            transfers.extend(Transfer(wave, expert_tensors, transport, device) for wave in waves)
            size_bytes = max((transfer.size_bytes for transfer in transfers), default=0)
            if not memory:  # undoing needs no more
                memory.extend(torch.empty(size_bytes, dtype=torch.uint8, device=device) for _ in range(3))

        failure = together(make_room, "making room for experts", everyone)
        if failure is not None:
            return 0, 0, failure
        num_done, failure = _carry_out(transfers, memory, everyone)
        return sum(transfer.sent_bytes for transfer in transfers), num_done, failure

    sent_bytes, num_done, failure = carry_out(waves)
    if failure is None:
        return sent_bytes, None
    if num_done:
        _, _, again = carry_out([inverse(wave) for wave in waves[:num_done][::-1]])
        if again is not None:
            raise RelibraError(f"experts are between two placements: {failure}, and undoing it: {again}; {_ADVICE}")
    return 0, failure


def _carry_out(
    transfers: Sequence[Transfer], memory: Sequence[Tensor], everyone: dist.ProcessGroup
) -> tuple[int, str | None]:
    """Carry out transfers until one fails; return how many are written on all ranks, and why the next one failed.

    Args:
        transfers: one after the other.
        memory: room for what a transfer receives, and twice for what it sends.
        everyone: all ranks of the job.

    Raises:
        RelibraError: some ranks have written a transfer that failed on others, and its experts could not be put back.
    """
    arrived, *sent = memory
    before: Transfer | None = None
    for i, transfer in enumerate([*transfers, None]):
        if transfer is not None:
            transfer.place(sent[i % 2], arrived)
        failure = together(partial(_go_on, before, transfer), "moving experts", everyone)
        if failure is None:
            before = transfer
            continue
        if before is not None:
            again = together(before.restore, "putting experts back", everyone)
            if again is not None:
                raise RelibraError(f"experts are between two placements: {failure}, {again}; {_ADVICE}")
        return max(0, i - 1), failure
    return len(transfers), None


def _go_on(before: Transfer | None, transfer: Transfer | None) -> None:
    """Write a transfer that all ranks have verified, and bring the experts of the next one into the buffers."""
    try:
        if before is not None:
            before.commit()
        if transfer is not None:
            transfer.stage()
    finally:
        if transfer is not None:
            transfer.exchange()  # after a failure, too, because its peers wait
    if transfer is not None:
        transfer.verify()
