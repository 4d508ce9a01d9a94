import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from relibra.errors import LimitExceeded, TooManyCalls
from relibra.planner.limits import admission
from relibra.planner.limits.admission import MAX_HEALTH_WATCHES, MAX_PACKINGS, REFUSALS_PER_S, Admission
from relibra.planner.settings import PlannerSettings
from relibra.planning import Cluster, Model
from relibra.store import ALL_JOBS


def admission_of(**settings: Any) -> Admission:
    return Admission(PlannerSettings.load(redis_url="unix:///unused", **settings))


def test_S6_a_job_has_no_more_open_calls_than_its_limit_and_other_jobs_are_served() -> None:
    limits = admission_of(max_calls_per_job=2)
    with limits.call("job"):
        with (
            limits.call("job"),
            limits.call("other"),
            pytest.raises(LimitExceeded, match=r"job 'job' has 2 calls and streams open .* \(max_calls_per_job\)"),
            limits.call("job"),
        ):
            pass
        with limits.call("job"):
            pass
    for _ in range(3):
        with limits.call(ALL_JOBS), limits.call(ALL_JOBS), limits.call(ALL_JOBS):
            pass
    assert len(limits._calls) == 0


def test_S7_watches_of_health_are_bounded_and_checks_are_always_answered() -> None:
    limits = admission_of()
    with ExitStack() as stack:
        for number in range(MAX_HEALTH_WATCHES):
            stack.enter_context(limits.health_call("Watch", f"{ALL_JOBS} connection {number % 2}"))
        with pytest.raises(TooManyCalls, match=r"256 watches of health.*use Check") as refused:
            stack.enter_context(limits.health_call("Watch", f"{ALL_JOBS} connection 1"))
        assert refused.value.limit == "health_watches"
        stack.enter_context(limits.health_call("Check", f"{ALL_JOBS} connection 1"))


def test_S7_a_job_has_few_packings_under_way() -> None:
    limits = admission_of()
    with ExitStack() as stack:
        for _ in range(MAX_PACKINGS):
            stack.enter_context(limits.packings.hold("job"))
        with pytest.raises(TooManyCalls, match=r"job 'job' has 4 packings under way .* \(packings\)"):
            stack.enter_context(limits.packings.hold("job"))
        stack.enter_context(limits.packings.hold("other"))


def test_S7_jobs_are_bounded_in_all_and_those_of_a_team_by_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIBRA_MAX_JOBS_BY_PREFIX", '{"red-": 1}')
    limits = admission_of(max_jobs=3)
    limits.check_num_jobs("red-1", ["blue-1", "reddish"])
    with pytest.raises(LimitExceeded, match=r"allows 1 jobs whose names begin with 'red-', and") as refused:
        limits.check_num_jobs("red-2", ["blue-1", "red-1"])
    assert refused.value.limit == "max_jobs_by_prefix"
    limits.check_num_jobs("blue-2", ["blue-1", "red-1"])
    with pytest.raises(LimitExceeded, match=r"max_jobs allows 3 jobs, .*; remove one"):
        limits.check_num_jobs("blue-3", ["blue-1", "blue-2", "red-1"])


def test_S7_a_job_has_no_more_ranks_than_a_sum_can_name() -> None:
    limits, model = admission_of(), Model(num_layers=1, num_experts=4096, top_k=1)
    for num_ep_groups in (16, 17):
        cluster = Cluster(num_nodes=512, gpus_per_node=8, redundant_slots=1, num_ep_groups=num_ep_groups)
        if num_ep_groups == 16:
            limits.check_registration(model, cluster, 0)
        else:
            with pytest.raises(LimitExceeded, match="65536 ranks in all its EP groups, got 69632: 17 groups of 4096"):
                limits.check_registration(model, cluster, 0)


def test_S6_many_refused_calls_of_one_job_wait_and_a_call_of_another_does_not() -> None:
    async def scenario() -> None:
        limits = admission_of()
        greedy = [asyncio.create_task(limits.wait_for_refusal("greedy", None)) for _ in range(20 * REFUSALS_PER_S)]
        await asyncio.sleep(0)
        await asyncio.wait_for(limits.wait_for_refusal("modest", None), 60)
        assert sum(not task.done() for task in greedy) > 10 * REFUSALS_PER_S
        # A caller with a deadline learns why before it hangs up, however many wait.
        await asyncio.wait_for(limits.wait_for_refusal("greedy", 0.01), 60)
        await asyncio.wait_for(limits.wait_for_refusal("greedy", -1.0), 60)
        # L4: a planner that drains does not let them wait.
        limits.drain()
        await asyncio.wait_for(asyncio.gather(*greedy), 60)
        assert len(limits.refusals) == 0

    asyncio.run(scenario())


def test_S7_as_many_refusals_wait_as_memory_is_meant_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_WAITING_REFUSALS", 100)

    async def scenario() -> None:
        limits = admission_of()
        greedy = [asyncio.create_task(limits.wait_for_refusal("greedy", None)) for _ in range(1000)]
        await asyncio.sleep(0)
        assert len(limits.refusals) <= 100
        for task in greedy:
            task.cancel()
        await asyncio.gather(*greedy, return_exceptions=True)
        assert len(limits.refusals) == 0

    asyncio.run(scenario())
