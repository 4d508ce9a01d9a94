"""A client of relibra takes a job through one step: `python whole_step.py PLANNER JOB`.

It runs with the relibra of today and with an older one, so it imports nothing else of the tests, and it sets what the
older one lacks only where it can.
"""

import json
import sys
from dataclasses import fields
from typing import Any

import numpy as np

from relibra.planning import Cluster, CostModel, ExecutionReport, Model, Phase, PlanParams, Schedule, check_rank_plan
from relibra.rollout import RolloutReporter
from relibra.v1 import execution_pb2, job_pb2, plan_pb2, routing_pb2
from relibra.wire.client import PlannerClient

MODEL = Model(num_layers=3, num_experts=8, top_k=2)
CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
NUM_SEQUENCES = 8
NEW_COSTS = {"host_us": 1.0}
NEW_FIGURES = {"duration_s": 8.5, "num_processes": 2}


def take_step(planner: str, job_id: str) -> str:
    """Report, schedule, fetch and execute a step; return the id of its plan."""
    params = PlanParams(cost=CostModel(**_known(CostModel, NEW_COSTS)))
    ids = [f"seq-{number}" for number in range(NUM_SEQUENCES)]
    with PlannerClient(planner, timeout_s=60) as client:
        client.register_job(job_id, MODEL, CLUSTER, params)
        with RolloutReporter(planner, job_id, num_experts=MODEL.num_experts) as reporter:
            rng = np.random.default_rng(0)
            for each in ids:
                first_TL1 = rng.integers(MODEL.num_experts, size=(16, MODEL.num_layers, 1))
                routed_TLK = np.concatenate([first_TL1, (first_TL1 + 1) % MODEL.num_experts], axis=-1)
                assert reporter.report(1, each, routed_TLK.astype(np.uint8))
            assert reporter.flush(timeout_s=60) == NUM_SEQUENCES
        client.submit_schedule(job_id, 1, ids, Schedule.round_robin(NUM_SEQUENCES, 2, CLUSTER))
        for rank in range(CLUSTER.num_ranks):
            plan = client.fetch_plan(job_id, 1, MODEL, rank, wait_s=60)
            check_rank_plan(plan, MODEL, CLUSTER)
            report = ExecutionReport(
                step=1,
                phase=Phase.UPDATE,
                ep_group=0,
                ep_rank=rank,
                applied=plan.id,
                reason="as planned",
                realised_load_ML=np.full((2, MODEL.num_layers), 32),
                reorder_sent_bytes=0,
                replica_sent_bytes=0,
                plan_wait_s=0.0,
                **_known(ExecutionReport, NEW_FIGURES),
            )
            client.report_execution(job_id, report)
    return str(plan.id)


def messages() -> dict[str, dict[int, list[Any]]]:
    """Return the fields of every message by number: name, type, and whether it is repeated."""
    found: dict[str, dict[int, list[Any]]] = {}
    for module in (execution_pb2, job_pb2, plan_pb2, routing_pb2):
        for name, message in module.DESCRIPTOR.message_types_by_name.items():
            found[name] = {each.number: [each.name, each.type, each.is_repeated] for each in message.fields}
    return found


def sources() -> list[str]:
    """Return the files of relibra that this process has loaded."""
    loaded = (getattr(each, "__file__", None) for name, each in sys.modules.items() if name.startswith("relibra."))
    return [each for each in loaded if each]


def _known(of: type, values: dict[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(of)}
    return {name: value for name, value in values.items() if name in names}


if __name__ == "__main__":
    print(json.dumps({"plan": take_step(*sys.argv[1:]), "messages": messages(), "sources": sources()}))
