"""The ways on which replicas reach a rank: the transport between the ranks of its node, and their host copy.

The ranks of a node connect among themselves, and then hear whether those of all other nodes have connected too.
Otherwise the ranks of a node without symmetric memory would raise alone, and those of the other nodes would wait for
them until `collective_timeout_s`.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from relibra.agent.cells.host_copy import HostCopy
from relibra.agent.config import AgentConfig
from relibra.agent.experts import Experts
from relibra.agent.groups import Groups
from relibra.agent.plans.consent import Concern, found_by, raise_on_all
from relibra.agent.transport import ProcessGroupTransport
from relibra.agent.transport.choice import chosen_transport
from relibra.agent.transport.timed import TimedTransport
from relibra.errors import Unsupported

CONNECTING = Concern(
    what="connecting the ranks of a node",
    error=Unsupported,
    advice='its machine lacks what the settings ask for: use transport="symmetric_if_possible", or host_copy=False',
)


class Connection(NamedTuple):
    """How replicas travel to one rank and back."""

    transport: TimedTransport
    host_copy: HostCopy | None


def connect(config: AgentConfig, groups: Groups, experts: Mapping[int, Experts], device: torch.device) -> Connection:
    """Collective over all ranks: connect the ranks of every node, and again whenever their groups are replaced.

    Args:
        config: the settings of the agent.
        groups: the process groups of this rank.
        experts: the experts of this rank, by layer.
        device: where the experts are.

    Raises:
        Unsupported: on all ranks, if those of one node cannot connect as the settings ask for.
        RelibraError: on all ranks, if those of one node could not connect for another reason; or a rank is gone.
    """
    made = list[Connection]()

    def connect_node() -> None:
        transport = chosen_transport(config, groups.node, device)
        if isinstance(transport, ProcessGroupTransport):
            groups.on_rebuilt(lambda: transport.use(groups.node))
        timed = TimedTransport(transport)
        made.append(Connection(timed, None))

    raise_on_all({CONNECTING: found_by(connect_node)}, "while attaching", groups.everyone)
    (connection,) = made
    if not config.host_copy:
        return connection
    return connection._replace(host_copy=copy_to_host(groups, connection.transport, experts))


def copy_to_host(groups: Groups, transport: TimedTransport, experts: Mapping[int, Experts]) -> HostCopy:
    """Collective over all ranks: make the host copy of each node, which meets in the node's group of the time.

    Raises:
        RelibraError: a peer is gone.
        Unsupported: on all ranks, if one has too little host memory, or cannot open another's. Nothing is kept.
    """
    made = list[HostCopy]()

    def copy_node() -> None:
        made.append(HostCopy(groups.node, transport, experts))

    raise_on_all({CONNECTING: found_by(copy_node)}, "while attaching", groups.everyone)
    (host_copy,) = made
    groups.on_rebuilt(lambda: host_copy.use(groups.node))
    return host_copy
