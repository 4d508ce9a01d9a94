"""The transport of tensors between ranks, for the fetch of replicas, the return of gradients, and the reorder.

In:   tensors to send and to fill, by peer.
Out:  transfers that can be started again and again, each time with a handle to wait on.

`contract` states the promises of every transport. `process_group` sends messages over `torch.distributed`; `symmetric`
pushes bytes into memory of the receiver that the sender maps, on devices that `symmetric_memory` describes and
`cuda_memory` implements. `choice` makes the one that the settings ask for. `host` keeps frozen weights in host memory,
from which every rank of the node pulls them; it is not a transport by this contract. `schedule` chooses the order and
the way of the copies of a cell, and `delivery` starts their transfers. A reorder does not use the schedule.
"""

from relibra.agent.transport.contract import Copy, ExpertTransport, Handle, Receive, Send, Transfers
from relibra.agent.transport.delivery import Fetch, FrozenLayer, Return
from relibra.agent.transport.host import HostPulls, HostWeights, Pull
from relibra.agent.transport.process_group import ProcessGroupTransport
from relibra.agent.transport.schedule import Hop, TransferSchedule, peers_by_round, transfer_schedule
from relibra.agent.transport.symmetric import SymmetricTransport

__all__ = [
    "Copy",
    "ExpertTransport",
    "Fetch",
    "FrozenLayer",
    "Handle",
    "Hop",
    "HostPulls",
    "HostWeights",
    "ProcessGroupTransport",
    "Pull",
    "Receive",
    "Return",
    "Send",
    "SymmetricTransport",
    "TransferSchedule",
    "Transfers",
    "peers_by_round",
    "transfer_schedule",
]
