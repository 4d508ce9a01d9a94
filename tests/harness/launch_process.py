"""A process of a launch: its driver, which registers the job, or a trainer rank. It obeys lines of its standard input.

    python -m harness.launch_process driver ADDRESS JOB SLOTS TIMEOUT_S     prints the epoch
    python -m harness.launch_process rank ADDRESS JOB SLOTS TIMEOUT_S

RELIBRA_ATTEMPT holds the token of the launch. A line `STEP` makes a driver report and schedule the step, and a rank
wait for its plan. Each prints one line of JSON.
"""

import dataclasses
import json
import logging
import sys

import numpy as np

from harness.services import CLUSTER, MODEL, PARAMS, routed_experts
from relibra.agent import AgentConfig, PlanAnswer, Session
from relibra.planning import Cluster, ExecutionReport, Phase, Schedule
from relibra.rollout import RolloutReporter
from relibra.wire.client import PlannerClient

IDS = [f"seq-{index}" for index in range(8)]


def drive(address: str, job_id: str, cluster: Cluster, timeout_s: float) -> None:
    client = PlannerClient(address, timeout_s=timeout_s)
    say(epoch=client.register_job(job_id, MODEL, cluster, PARAMS))
    for line in sys.stdin:
        if line.strip() == "register":
            say(epoch=client.register_job(job_id, MODEL, cluster, PARAMS))
            continue
        step = int(line)
        with RolloutReporter(address, job_id, num_experts=MODEL.num_experts) as reporter:
            for index, sequence_id in enumerate(IDS):
                reporter.report(step, sequence_id, routed_experts(100 * step + index, 5 + index))
        client.submit_schedule(job_id, step, IDS, Schedule.round_robin(len(IDS), 2, cluster))
        say(step=step)


def train(address: str, job_id: str, cluster: Cluster, timeout_s: float) -> None:
    config = AgentConfig(planner_address=address, job_id=job_id, model=MODEL, cluster=cluster)
    session = Session(config)
    for line in sys.stdin:
        step = int(line)
        answer = session.wait(step, timeout_s)
        session.report(report(step, answer))
        plan = answer.plan
        say(step=step, epoch=None if plan is None else plan.id.epoch, reason=answer.reason, lack=answer.lack)


def report(step: int, answer: PlanAnswer) -> ExecutionReport:
    return ExecutionReport(
        step=step,
        phase=Phase.UPDATE,
        ep_group=0,
        ep_rank=0,
        applied=None if answer.plan is None else answer.plan.id,
        reason=answer.reason,
        realised_load_ML=np.ones((2, MODEL.num_layers), dtype=np.int64),
        reorder_sent_bytes=0,
        replica_sent_bytes=0,
        plan_wait_s=0.0,
    )


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    role, address, job_id, slots, timeout_s = sys.argv[1:]
    cluster = dataclasses.replace(CLUSTER, redundant_slots=int(slots))
    (drive if role == "driver" else train)(address, job_id, cluster, float(timeout_s))
