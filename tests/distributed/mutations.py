"""A part of the agent is taken out: the comparison with plain training must notice."""

from typing import Any
from unittest import mock

from gpt_job import RECOMPUTE
from matrix import compare

from relibra.agent import Agent, megatron
from relibra.errors import RelibraError
from relibra.planning import Cluster

Result = dict[str, Any]
WAY: dict[str, Any] = {"sharded": False, "bf16": False}


def no_replay(cluster: Cluster) -> Result:
    """Routers decide themselves instead of following the routing given for the micro-batch."""
    with mock.patch.object(Agent, "set_routing"):
        return compare(cluster, **WAY)


def forgetful_checkpoints(cluster: Cluster) -> Result:
    """Recomputations do not know their micro-batch: refused, before anything is exchanged."""
    with mock.patch.object(megatron, "current_of_any", return_value=None):
        try:
            compare(cluster, **WAY, **RECOMPUTE["full"])
        except RelibraError as error:
            return {"message": str(error)}
    return {"message": "not refused"}
