"""A planner is killed while ranks train, and comes back. No other process restarts.

Rank 0 also drives the job, and the services are its child processes: a real Redis, planner, reporter and sessions.
"""

from harness.distributed.layout import EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import itertools
    import tempfile
    from contextlib import contextmanager
    from pathlib import Path

    import numpy as np
    import torch.distributed as dist

    from harness.distributed.attached import M, note_step
    from harness.distributed.networks import MODEL, Trained, routing
    from harness.distributed.observed import TOLERANCE, Differences, gathered
    from harness.services import Loop, Service
    from relibra.agent import AgentConfig, Phase, attach
    from relibra.errors import RelibraError
    from relibra.planning import Schedule
    from relibra.rollout import RolloutReporter
    from relibra.store import EmbeddedRedis, Store
    from relibra.wire.client import PlannerClient

JOB = "job"
KILLED, AWAY, BACK = range(3)
PLAN_TIMEOUT_S = 3.0
"""The time that a restarted planner may take for its next plan (L2)."""


class Driver:
    """The driver of the job on rank 0. It keeps one client and one reporter through the outage."""

    def __init__(self, folder, redis_url, cluster):
        self._redis_url, self.num_kills = redis_url, 0
        self.planner = Service("planner", redis_url, folder)
        self._client = PlannerClient(self.planner.address)
        self._client.register_job(JOB, MODEL, cluster)
        self._reporter = RolloutReporter(self.planner.address, JOB, num_experts=MODEL.num_experts)
        rows = np.arange(M * cluster.num_ranks)
        self._schedule = Schedule(
            micro_batch_S=rows // cluster.num_ranks, source_rank_S=rows % cluster.num_ranks, ep_group_S=0 * rows
        )

    def report(self, step):
        """Report one sequence per micro-batch and rank; they are durable on return."""
        for sequence_id, micro_batch, rank in self._sequences():
            routed_TLK = routing(step, micro_batch, rank).transpose(0, 1).numpy().astype(np.uint8)
            assert self._reporter.report(step, sequence_id, routed_TLK)
        self._reporter.flush(timeout_s=30)

    def plan(self, step):
        """Submit the schedule, and return the reason of the plan, or why there is none."""
        try:
            self._client.submit_schedule(JOB, step, [each for each, _, _ in self._sequences()], self._schedule)
            return self._client.fetch_plan(JOB, step, MODEL, wait_s=30).reason
        except RelibraError as error:
            return f"{type(error).__name__}: {error}"

    def kill_planner_in(self, module, forward):
        """Send SIGKILL to the planner when forward number `forward` of `module` begins, counted from 0."""
        begun = itertools.count()

        def strike(*_):
            if next(begun) == forward:
                self.planner.kill()
                self.num_kills += 1

        module.register_forward_pre_hook(strike)

    def reports(self, num_steps):
        """Return the reports of the ranks, by step."""
        with Loop() as run:
            store = Store.open(self._redis_url)
            job = run(store.get_job(JOB))
            reports = [run(store.get_reports(job, step)) for step in range(num_steps)]
            run(store.close())
        return reports

    def stop(self):
        self._reporter.close()
        self._client.close()
        self.planner.stop()

    def _sequences(self):
        schedule = zip(self._schedule.micro_batch_S.tolist(), self._schedule.source_rank_S.tolist(), strict=True)
        return ((f"micro-batch {m} of rank {rank}", m, rank) for m, rank in schedule)


if IS_RANK:

    @contextmanager
    def driving(cluster):
        """Yield the driver on rank 0, and None on the other ranks."""
        if dist.get_rank() != 0:
            yield None
            return
        with tempfile.TemporaryDirectory() as folder, EmbeddedRedis(Path(folder)) as redis:
            driver = Driver(Path(folder), redis.url, cluster)
            try:
                yield driver
            finally:
                driver.stop()


@on_ranks(EP4)
def test_L1_L2_S5_training_goes_on_while_a_planner_is_away_and_is_planned_again_when_it_is_back(cluster):
    """The planner is killed in the first of three steps, away in the second, and back before the third."""
    with driving(cluster) as driver:
        address = [driver.planner.address if driver is not None else ""]
        dist.broadcast_object_list(address)
        plain, balanced = Trained(cluster, "sgd"), Trained(cluster, "sgd")
        config = AgentConfig(
            planner_address=address[0],
            job_id=JOB,
            model=MODEL,
            cluster=cluster,
            plan_timeout_s=PLAN_TIMEOUT_S,
            guard=False,
        )
        agent = balanced.agent = attach(balanced.ddp, balanced.optimizer, config)
        differences, outcomes = Differences(), []
        if driver is not None:
            driver.kill_planner_in(balanced.ddp, forward=1)
            driver.report(KILLED)
            driver.report(AWAY)  # rollouts run ahead of training
        for step in (KILLED, AWAY, BACK):
            if driver is not None:
                if step == BACK:
                    driver.planner.start()
                    driver.report(BACK)
                reason = driver.plan(step)
                assert reason.startswith("Unavailable: the planner did not answer") == (step == AWAY), reason
            dist.barrier()
            outcomes.append(agent.begin_step(step, Phase.UPDATE))
            note_step(differences, plain, balanced, step)
            agent.end_step()
        agent.detach()
        dist.barrier()
        assert max(differences.of.values()) <= TOLERANCE, "S5: training does not notice the outage"
        assert_each_step_ends_as_it_should(outcomes)
        outcomes_of_ranks = gathered(outcomes)
        if driver is not None:
            assert driver.num_kills == 1
            assert_reports_arrive_after_the_outage(driver.reports(len(outcomes)), outcomes_of_ranks)


def assert_each_step_ends_as_it_should(outcomes):
    killed, away, back = outcomes
    assert killed.applied is not None, "L1: the step in which the planner dies ends as planned"
    assert min(killed.num_moved_experts, killed.num_replicas) > 0
    assert away.applied is None, "L1: the step without a planner waits for the timeout and falls back"
    assert away.reason.startswith("ranks 0, 1, 2, 3 without a plan in time (this rank: ")
    assert "no plan of step 1 within 3 s: the planner did not answer" in away.reason
    assert PLAN_TIMEOUT_S <= away.plan_wait_s < 10 * PLAN_TIMEOUT_S, "the machine may be busy"
    assert away.num_moved_experts == 0
    assert away.num_replicas == killed.num_replicas, "L1: it keeps the replicas of the last plan"
    assert back.applied not in (None, killed.applied), "L2: the step after its restart has a plan again"
    assert min(back.num_moved_experts, back.num_replicas) > 0


def assert_reports_arrive_after_the_outage(reports_of_steps, outcomes_of_ranks):
    """L2: the planner learns afterwards what ranks did without it, because the sessions keep the reports."""
    loads = [int(report.realised_load_ML.sum()) for report in reports_of_steps[KILLED]]
    assert max(loads) < 1.05 * sum(loads) / len(loads), "the plan's balance was not there"
    for step, reports in enumerate(reports_of_steps):
        assert [report.ep_rank for report in reports] == [0, 1, 2, 3]
        for report, outcomes in zip(reports, outcomes_of_ranks, strict=True):
            assert report.applied == outcomes[step].applied
            assert report.reason == outcomes[step].reason
            assert [*map(str, report.causes)] == (["late"] if step == AWAY else [])
            assert (report.reorder_s > 0) == (step != AWAY)
            assert report.replica_wait_s > 0
