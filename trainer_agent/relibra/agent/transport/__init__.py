"""How tensors travel between the ranks of a group: behind the fetch of replicas, the return of gradients, the reorder.

In:   tensors to send and to fill, by peer.
Out:  a handle to wait on.

`contract` says what every transport promises; `process_group` moves messages over `torch.distributed`.
"""

from relibra.agent.transport.contract import ExpertTransport, Handle, Parcel
from relibra.agent.transport.process_group import ProcessGroupTransport

__all__ = ["ExpertTransport", "Handle", "Parcel", "ProcessGroupTransport"]
