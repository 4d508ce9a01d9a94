"""How tensors travel between the ranks of a group: behind the fetch of replicas, the return of gradients, the reorder.

In:   tensors to send and to fill, by peer.
Out:  a handle to wait on.

`contract` says what every transport promises; `process_group` moves messages over `torch.distributed`, `peer` moves
bytes through memory that the ranks of a node share. `host` keeps frozen weights where every rank of the node can take
them, and is no transport by that contract. `schedule` says in which order the copies of a cell best travel, and by
which way; `delivery` has them do so. What a reorder moves is ordered by rounds alone.
"""

from relibra.agent.transport.contract import Copy, ExpertTransport, Handle, Parcel
from relibra.agent.transport.delivery import FrozenLayer, fetch_copies, return_gradients
from relibra.agent.transport.host import HostPulls, HostWeights, Pull
from relibra.agent.transport.peer import PeerTransport
from relibra.agent.transport.process_group import ProcessGroupTransport
from relibra.agent.transport.schedule import Hop, TransferSchedule, peers_by_round, transfer_schedule

__all__ = [
    "Copy",
    "ExpertTransport",
    "FrozenLayer",
    "Handle",
    "Hop",
    "HostPulls",
    "HostWeights",
    "Parcel",
    "PeerTransport",
    "ProcessGroupTransport",
    "Pull",
    "TransferSchedule",
    "fetch_copies",
    "peers_by_round",
    "return_gradients",
    "transfer_schedule",
]
