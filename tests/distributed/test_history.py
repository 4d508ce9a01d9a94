"""A job that nobody schedules: agents report what they computed, and a real planner plans the next steps from that."""

import pytest

from harness.distributed.layout import EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import signal
    import tempfile
    from contextlib import contextmanager
    from pathlib import Path

    import torch.distributed as dist

    from harness.distributed.attached import note_step
    from harness.distributed.networks import MODEL, Trained
    from harness.distributed.observed import TOLERANCE, Differences, gathered
    from harness.services import Loop, Service, eventually
    from relibra.agent import AgentConfig, Phase, attach
    from relibra.planning.plan import Level
    from relibra.store import EmbeddedRedis, Store
    from relibra.wire.client import PlannerClient

    @contextmanager
    def services(cluster):
        """Yield a planner and the URL of its Redis on rank 0, where the job is registered, and None on other ranks."""
        if dist.get_rank() != 0:
            yield None
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # if another rank fails, this one ends by itself and stops both
        with tempfile.TemporaryDirectory() as folder, EmbeddedRedis(Path(folder)) as redis:
            planner = Service("planner", redis.url, Path(folder))
            try:
                with PlannerClient(planner.address) as client:
                    client.register_job("job", MODEL, cluster)
                    yield planner, client, redis.url
            finally:
                planner.stop()

    def is_planned(client, step):
        plan = client.fetch_plan("job", step, MODEL)
        return plan is not None and plan.step == step


NUM_STEPS, AWAY = 5, 4


@pytest.mark.long
@on_ranks(EP4)
def test_S5_L1_S9_steps_that_nobody_scheduled_are_planned_from_the_steps_before(cluster):
    with services(cluster) as of_first:
        address = gathered(of_first[0].address if of_first else "")[0]
        plain, balanced, differences = Trained(cluster, "sgd"), Trained(cluster, "sgd"), Differences()
        config = AgentConfig(
            planner_address=address, job_id="job", model=MODEL, cluster=cluster, plan_timeout_s=3.0, guard=False
        )
        agent = balanced.agent = attach(balanced.ddp, balanced.optimizer, config)
        outcomes = []
        for step in range(NUM_STEPS):
            if of_first and step:  # training would go on without the plan, and this test wants to see each one
                eventually(lambda step=step: is_planned(of_first[1], step), within_s=120)
            if of_first and step == AWAY:
                of_first[0].kill()
            dist.barrier()
            outcomes.append(agent.begin_step(step, Phase.UPDATE))
            note_step(differences, plain, balanced, 0)  # the same routing in every step
            agent.end_step()
        first, *planned, away = outcomes
        assert (first.applied, first.kept, first.num_replicas) == (None, None, 0)
        assert [str(cause) for cause in first.causes] == ["unscheduled"]
        assert all(outcome.applied is not None and outcome.num_replicas > 0 for outcome in planned)
        assert len({outcome.applied for outcome in planned}) == len(planned)
        assert away.applied is None
        assert (away.kept, away.num_replicas) == (planned[-1].applied, planned[-1].num_replicas), "L1"
        assert max(differences.of.values()) <= TOLERANCE, differences.of
        assert len(set(gathered(str(outcomes[2].applied)))) == 1, "S1"
        agent.detach()
        if of_first:
            with Loop() as run:
                store = Store.open(of_first[2])
                job = run(store.get_job("job"))
                executed = [run(store.get_executions(job, [step]))[0] for step in range(AWAY)]
                assert run(store.get_step(job, 2)).plan.prediction.level is Level.HISTORY
                run(store.close())
            ((before,), *after) = executed
            assert before.imbalance == before.imbalance_plain > 1.1
            for (phase,) in after:
                assert phase.imbalance_plain == before.imbalance_plain
                assert phase.imbalance < 1.0 + (before.imbalance - 1.0) / 2
