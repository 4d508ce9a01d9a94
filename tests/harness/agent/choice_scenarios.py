"""The choice of a transport on ranks without GPUs. Each scenario returns JSON for its tests."""

import logging
from collections.abc import Callable

import torch
import torch.distributed as dist

from harness.agent.contract_scenarios import TIMEOUT_S, Result, message_of
from relibra.agent import AgentConfig
from relibra.agent.config import Transport
from relibra.agent.transport.choice import chosen_transport
from relibra.planning import Cluster, Model


def chosen(group: dist.ProcessGroup) -> Result:
    """Ask for symmetric memory in both ways, and for messages."""

    def choose(transport: Transport) -> str:
        config = AgentConfig(
            planner_address="none:0",
            job_id="test",
            model=Model(num_layers=1, num_experts=4, top_k=1),
            cluster=Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=1),
            plan_timeout_s=1.0,
            collective_timeout_s=TIMEOUT_S,
            transport=transport,
        )
        return type(chosen_transport(config, group, torch.device("cpu"))).__name__

    warnings = list[str]()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("relibra.agent.transport.choice")
    logger.addHandler(handler)
    try:
        return {
            "refusal": message_of(lambda: choose("symmetric")),
            "otherwise": choose("symmetric_if_possible"),
            "plain": choose("process_group"),
            "warnings": warnings,
        }
    finally:
        logger.removeHandler(handler)


SCENARIOS: dict[str, Callable[[dist.ProcessGroup], Result]] = {"chosen": chosen}
