"""A planner dies while ranks train, and comes back, with real Redis, planner, reporter and sessions.

Rank 0 also drives the job, and the services are its child processes.
"""

import itertools
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import nn

from harness.distributed.attached import M, note_step
from harness.distributed.networks import MODEL, Trained, routing
from harness.distributed.observed import Differences
from harness.services import Loop, Service
from relibra.agent import AgentConfig, Phase, attach
from relibra.errors import RelibraError
from relibra.planning import Cluster, Schedule
from relibra.rollout import RolloutReporter
from relibra.store import EmbeddedRedis, Store
from relibra.wire.client import PlannerClient

Result = dict[str, Any]
JOB = "job"
PLAN_TIMEOUT_S = 3.0
"""The time that a restarted planner may take for its next plan (L2)."""


class Driver:
    """The driver of the job on rank 0. It keeps one client and one reporter through the outage."""

    def __init__(self, folder: Path, redis_url: str, cluster: Cluster) -> None:
        self._redis_url, self.num_kills = redis_url, 0
        self.planner = Service("planner", redis_url, folder)
        self._client = PlannerClient(self.planner.address)
        self._client.register_job(JOB, MODEL, cluster)
        self._reporter = RolloutReporter(self.planner.address, JOB, num_experts=MODEL.num_experts)
        rows = np.arange(M * cluster.num_ranks)
        self._schedule = Schedule(
            micro_batch_S=rows // cluster.num_ranks, source_rank_S=rows % cluster.num_ranks, ep_group_S=0 * rows
        )

    def report(self, step: int) -> None:
        """Report one sequence per micro-batch and rank; they are durable on return."""
        for sequence_id, micro_batch, rank in self._sequences():
            routed_TLK = routing(step, micro_batch, rank).transpose(0, 1).numpy().astype(np.uint8)
            assert self._reporter.report(step, sequence_id, routed_TLK)
        self._reporter.flush(timeout_s=30)

    def plan(self, step: int) -> str:
        """Submit the schedule, and return the reason of the plan, or why there is none."""
        try:
            self._client.submit_schedule(JOB, step, [each for each, _, _ in self._sequences()], self._schedule)
            return self._client.fetch_plan(JOB, step, MODEL, wait_s=30).reason
        except RelibraError as error:
            return f"{type(error).__name__}: {error}"

    def kill_planner_in(self, module: nn.Module, forward: int) -> None:
        """Send SIGKILL to the planner when forward number `forward` of `module` begins, counted from 0."""
        begun = itertools.count()

        def strike(*_: Any) -> None:
            if next(begun) == forward:
                self.planner.kill()
                self.num_kills += 1

        module.register_forward_pre_hook(strike)

    def reports(self, num_steps: int) -> list[list[Any]]:
        """Return the reports of the ranks, by step."""
        with Loop() as run:
            store = Store.open(self._redis_url)
            job = run(store.get_job(JOB))
            reports = [run(store.get_reports(job, step)) for step in range(num_steps)]
            run(store.close())
        return [
            [
                {
                    "ep_rank": each.ep_rank,
                    "applied": str(each.applied) if each.applied else None,
                    "reason": each.reason,
                    "causes": [str(cause) for cause in each.causes],
                    "tokens": int(each.realised_load_ML.sum()),
                    "reorder_s": each.reorder_s,
                    "replica_wait_s": each.replica_wait_s,
                }
                for each in of_step
            ]
            for of_step in reports
        ]

    def stop(self) -> None:
        self._reporter.close()
        self._client.close()
        self.planner.stop()

    def _sequences(self) -> Iterator[tuple[str, int, int]]:
        schedule = zip(self._schedule.micro_batch_S.tolist(), self._schedule.source_rank_S.tolist(), strict=True)
        return ((f"micro-batch {m} of rank {rank}", m, rank) for m, rank in schedule)


@contextmanager
def driving(cluster: Cluster) -> Iterator[Driver | None]:
    """Yield the driver on rank 0, and None on the other ranks."""
    if dist.get_rank() != 0:
        yield None
        return
    # If another rank fails, this rank must end by itself, to stop the services as well.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with tempfile.TemporaryDirectory() as folder, EmbeddedRedis(Path(folder)) as redis:
        driver = Driver(Path(folder), redis.url, cluster)
        try:
            yield driver
        finally:
            driver.stop()


def planner_outage(cluster: Cluster) -> Result:
    """Run three steps. The planner is killed in the first, away in the second, and back before the third."""
    with driving(cluster) as driver:
        address = [driver.planner.address if driver is not None else ""]
        dist.broadcast_object_list(address)
        plain, balanced = Trained(cluster, "sgd"), Trained(cluster, "sgd")
        config = AgentConfig(
            planner_address=address[0], job_id=JOB, model=MODEL, cluster=cluster, plan_timeout_s=PLAN_TIMEOUT_S
        )
        agent = balanced.agent = attach(balanced.ddp, balanced.optimizer, config)
        differences, outcomes, plans = Differences(), [], []
        if driver is not None:
            driver.kill_planner_in(balanced.ddp, forward=1)
            driver.report(0)
            driver.report(1)  # rollouts run ahead of training
        for step in range(3):
            if driver is not None:
                if step == 2:
                    driver.planner.start()
                    driver.report(2)
                plans.append(driver.plan(step))
            dist.barrier()
            outcomes.append(agent.begin_step(step, Phase.UPDATE))
            note_step(differences, plain, balanced, step)
            agent.end_step()
        agent.detach()
        dist.barrier()
        return {
            "difference": differences.of,
            "plans": plans,
            "num_kills": driver.num_kills if driver is not None else 0,
            "applied": [str(outcome.applied) if outcome.applied else None for outcome in outcomes],
            "reason": [outcome.reason for outcome in outcomes],
            "plan_wait_s": [outcome.plan_wait_s for outcome in outcomes],
            "moved_experts": [outcome.num_moved_experts for outcome in outcomes],
            "replicas": [outcome.num_replicas for outcome in outcomes],
            "reports": driver.reports(3) if driver is not None else [],
        }
