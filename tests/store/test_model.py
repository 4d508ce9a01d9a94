"""The store against a small model, for any order of calls by two planners and their clients."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, LONG_S, OTHER_PLAN, PLAN, SCHEDULE, published_plans, sequence
from relibra.errors import Conflict, LostLease, StaleEpoch
from relibra.planning import PlanId
from relibra.store import EmbeddedRedis, ExpiryCause, JobRecord, Lease, RetainedStep, Store, StoreLimits

LIMITS = StoreLimits(max_open_steps=1000)
STEPS = st.integers(1, 3)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with tempfile.TemporaryDirectory() as folder, EmbeddedRedis(Path(folder)) as server:
        yield server


def test_S3_S4_any_order_of_calls_keeps_versions_epochs_and_contents(server: EmbeddedRedis) -> None:
    class AgainstModel(StoreMachine):
        url = server.url

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        AgainstModel,
        settings=settings(
            max_examples=30,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # Each attempt to shrink an example takes some hundred round trips; shrinking a failure would take minutes.
            phases=[Phase.generate],
        ),
    )


class StoreMachine(RuleBasedStateMachine):
    """Leases do not end by time here; a rule ends them."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        with Redis.from_url(self.url) as client:
            client.flushall()
        self.run = Loop()
        self.store = Store.open(self.url)
        self.job: JobRecord = self.run(self.store.register_job("job", MODEL, CLUSTER, PARAMS))
        self.floor = 0
        self.known: set[int] = set()
        self.reported: dict[int, set[str]] = {}
        self.scheduled: list[int] = []
        self.open: set[int] = set()
        self.measured: list[RetainedStep] = []
        self.expired: dict[int, tuple[int, bool]] = {}
        """Expired step -> number of its sequences, and whether it was planned."""
        self.plans: dict[int, tuple[PlanId, bytes]] = {}
        self.version = 0
        self.leases: list[Lease] = []
        self.holder: Lease | None = None
        self.seen: dict[PlanId, bytes] = {}

    def teardown(self) -> None:
        self.run(self.store.close())
        self.run.__exit__()

    @rule(step=STEPS, name=st.sampled_from("abc"))
    def report(self, step: int, name: str) -> None:
        (outcome,) = self.run(self.store.put_counts([sequence(self.job.epoch, name, step=step)], LIMITS))
        kept = self.reported.setdefault(step, set())
        is_scheduled = step in self.scheduled or step in self.plans
        if name in kept or (step >= self.floor and not is_scheduled):
            assert outcome is None
            if name not in kept and not is_scheduled:
                self.open.add(step)
            kept.add(name)
            self.known.add(step)
        else:
            assert isinstance(outcome, Conflict)

    @rule(step=STEPS)
    def schedule(self, step: int) -> None:
        try:
            self.run(self.store.put_schedule(self.job, step, IDS, SCHEDULE, LIMITS))
        except Conflict:
            assert step < self.floor
            return
        if step not in self.plans and step not in self.scheduled:
            assert step >= self.floor
            self.scheduled.append(step)
            self.open.add(step)
        self.known.add(step)

    @rule()
    def take_lease(self) -> None:
        lease = self.run(self.store.take_lease("job", LONG_S))
        if self.holder is not None or not self.scheduled:
            assert lease is None
            return
        assert lease is not None
        assert lease.step == self.scheduled[0]
        assert all(lease.token > each.token for each in self.leases)
        self.holder = lease
        self.leases.append(lease)

    @rule()
    def lease_ends(self) -> None:
        self.run(self.store._redis.delete("relibra:{job}:lease"))
        self.holder = None

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), plan=st.sampled_from([PLAN, OTHER_PLAN]))
    def publish(self, data: st.DataObject, plan: object) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        existing = self.plans.get(lease.step)
        try:
            plan_id = self.run(self.store.publish_plan(lease, plan))
        except StaleEpoch:
            assert lease.epoch != self.job.epoch
        except Conflict:
            assert existing is not None
            assert existing[1] != plan.digest
        except LostLease:
            assert existing is None
            assert lease != self.holder
        else:
            assert lease.epoch == self.job.epoch
            if existing is None:
                assert lease == self.holder
                self.version += 1
                self.plans[lease.step] = plan_id, plan.digest
                self.scheduled.remove(lease.step)
                self.open = {each for each in self.open if each > lease.step}
                self.holder = None
            assert self.plans[lease.step] == (plan_id, plan.digest)
            assert plan_id == PlanId(epoch=self.job.epoch, version=self.plans[lease.step][0].version)

    @rule()
    def measure(self) -> None:
        """A planner looks at the steps, and decides later."""
        self.measured, _ = self.run(self.store.measure_steps(self.job))
        assert {each.step for each in self.measured} == self.known
        for each in self.measured:
            assert each.is_pending == (each.step in self.scheduled)
            assert each.is_planned == (each.step in self.plans)
            assert each.size_bytes > 0
            assert each.is_open == (each.step in self.open)

    @rule(steps=st.sets(STEPS))
    def expire(self, steps: set[int]) -> None:
        # Steps that are pending are chosen only after their attempt has ended: see test_expiry.py.
        chosen = {each: ExpiryCause.AGE for each in self.measured if each.step in steps and not each.is_pending}
        expired = self.run(self.store.expire_steps(self.job, chosen, time.time()))
        assert expired == [
            each.step
            for each in chosen
            if each.step in self.known
            and each.step not in self.scheduled
            and (each.is_open or each.step not in self.open)
        ]
        for step in expired:
            self.floor = max(self.floor, step + 1)
            self.known.discard(step)
            self.open.discard(step)
            self.expired[step] = len(self.reported.pop(step, set())), step in self.plans
            self.plans.pop(step, None)

    @rule(step=STEPS)
    def go_back(self, step: int) -> None:
        again = self.run(self.store.rollback("job", self.job.epoch, step))
        assert again.epoch > self.job.epoch
        assert self.run(self.store.rollback("job", self.job.epoch, step)) == again
        self.job = again
        self.forget_steps()

    @rule()
    def re_create(self) -> None:
        self.run(self.store.remove_job("job"))
        anew = self.run(self.store.register_job("job", MODEL, CLUSTER, PARAMS))
        assert anew.epoch > self.job.epoch
        self.job, self.version = anew, 0
        self.forget_steps()

    def forget_steps(self) -> None:
        self.floor, self.holder = 0, None
        self.known, self.reported, self.scheduled, self.plans = set(), {}, [], {}
        self.open, self.expired, self.measured = set(), {}, []

    @invariant()
    def the_store_is_the_model(self) -> None:
        records = self.run(published_plans(self.store, self.job))
        assert {each.step: (each.id, each.digest) for each in records} == self.plans
        assert self.run(self.store.num_planned_steps(self.job)) == self.version
        assert [each.step for each in self.run(self.store.list_steps(self.job))] == sorted(self.known, reverse=True)
        summaries = self.run(self.store.list_summaries(self.job))
        assert {each.step: (each.num_sequences, each.plan is not None) for each in summaries} == self.expired
        for each in records:
            assert self.seen.setdefault(each.id, each.digest) == each.digest
