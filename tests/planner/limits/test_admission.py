from contextlib import ExitStack
from typing import Any

import pytest

from relibra.errors import LimitExceeded, TooManyCalls
from relibra.planner.limits.admission import MAX_HEALTH_WATCHES, MAX_PACKINGS, Admission
from relibra.planner.settings import PlannerSettings
from relibra.planning import Cluster, Model
from relibra.store import ALL_JOBS


def admission_of(**settings: Any) -> Admission:
    return Admission(PlannerSettings.load(redis_url="unix:///unused", **settings))


def test_S6_a_job_has_no_more_open_calls_than_its_limit_and_other_jobs_are_served() -> None:
    admission = admission_of(max_calls_per_job=2)
    with admission.call("job"):
        with (
            admission.call("job"),
            admission.call("other"),
            pytest.raises(LimitExceeded, match=r"job 'job' has 2 calls and streams open .* \(max_calls_per_job\)"),
            admission.call("job"),
        ):
            pass
        with admission.call("job"):
            pass
    for _ in range(3):
        with admission.call(ALL_JOBS), admission.call(ALL_JOBS), admission.call(ALL_JOBS):
            pass
    assert len(admission._calls) == 0


def test_S7_watches_of_health_are_bounded_and_checks_are_always_answered() -> None:
    admission = admission_of()
    with ExitStack() as stack:
        for number in range(MAX_HEALTH_WATCHES):
            stack.enter_context(admission.health_call("Watch", f"{ALL_JOBS} connection {number % 2}"))
        with pytest.raises(TooManyCalls, match=r"256 watches of health.*use Check") as refused:
            stack.enter_context(admission.health_call("Watch", f"{ALL_JOBS} connection 1"))
        assert refused.value.limit == "health_watches"
        stack.enter_context(admission.health_call("Check", f"{ALL_JOBS} connection 1"))


def test_S7_a_job_has_few_packings_under_way() -> None:
    admission = admission_of()
    with ExitStack() as stack:
        for _ in range(MAX_PACKINGS):
            stack.enter_context(admission.packings.hold("job"))
        with pytest.raises(TooManyCalls, match=r"job 'job' has 4 packings under way .* \(packings\)"):
            stack.enter_context(admission.packings.hold("job"))
        stack.enter_context(admission.packings.hold("other"))


def test_S7_a_job_has_no_more_ranks_than_a_sum_can_name() -> None:
    admission, model = admission_of(), Model(num_layers=1, num_experts=4096, top_k=1)
    for num_ep_groups in (16, 17):
        cluster = Cluster(num_nodes=512, gpus_per_node=8, redundant_slots=1, num_ep_groups=num_ep_groups)
        if num_ep_groups == 16:
            admission.check_registration(model, cluster, 0)
        else:
            with pytest.raises(LimitExceeded, match="65536 ranks in all its EP groups, got 69632: 17 groups of 4096"):
                admission.check_registration(model, cluster, 0)
