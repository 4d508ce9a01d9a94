"""The transport that the settings ask for."""

import logging

import torch
import torch.distributed as dist

from relibra.agent.config import AgentConfig
from relibra.agent.transport.contract import ExpertTransport
from relibra.agent.transport.cuda_memory import CudaMemory
from relibra.agent.transport.process_group import ProcessGroupTransport
from relibra.agent.transport.symmetric import SymmetricTransport
from relibra.errors import Unsupported

log = logging.getLogger(__name__)


def chosen_transport(config: AgentConfig, group: dist.ProcessGroup, device: torch.device) -> ExpertTransport:
    """Collective: make the transport between the ranks of a node.

    Raises:
        RelibraError: a peer is gone.
        Unsupported: on all ranks, if the settings insist on symmetric memory and one rank cannot have it.
    """
    if config.transport == "process_group":
        return ProcessGroupTransport(group, device)
    try:
        return SymmetricTransport(CudaMemory(group, device, config.collective_timeout_s))
    except Unsupported as refusal:
        if config.transport == "symmetric":
            raise
        if dist.get_rank(group) == 0:
            log.warning("replicas travel through the process group, without symmetric memory: %s", refusal)
        return ProcessGroupTransport(group, device)
