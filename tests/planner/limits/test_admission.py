from typing import Any

import pytest

from relibra.errors import LimitExceeded
from relibra.planner.limits.admission import Admission
from relibra.planner.settings import PlannerSettings
from relibra.planning import Cluster, Model
from relibra.store import ALL_JOBS


def admission_of(**settings: Any) -> Admission:
    return Admission(PlannerSettings.load(redis_url="unix:///unused", **settings))


def test_a_burst_is_free_and_what_goes_beyond_is_paid_in_time() -> None:
    admission = admission_of(max_ingest_bytes_per_s=100)
    assert admission.delay_s("job", 100, now=0.0) == 0.0
    assert admission.delay_s("job", 50, now=0.0) == pytest.approx(0.5)
    assert admission.delay_s("job", 0, now=0.5) == 0.0


def test_an_idle_job_saves_up_one_burst_and_no_more() -> None:
    admission = admission_of(max_ingest_bytes_per_s=100)
    admission.delay_s("job", 1000, now=0.0)
    assert admission.delay_s("job", 100, now=1e6) == 0.0
    assert admission.delay_s("job", 100, now=1e6) == pytest.approx(1.0)


def test_S6_one_job_does_not_slow_down_another() -> None:
    admission = admission_of(max_ingest_bytes_per_s=100)
    assert admission.delay_s("flood", 10_000, now=0.0) > 0
    assert admission.delay_s("victim", 100, now=0.0) == 0.0


def test_S7_names_are_forgotten_when_they_have_paid() -> None:
    admission = admission_of(max_ingest_bytes_per_s=100)
    assert admission.delay_s("in debt", 100_000, 0.0) == 999.0
    for number in range(20_000):
        admission.delay_s(f"job-{number}", 1, float(number) / 1000)
    assert len(admission._spent_until) < 5000
    assert admission.delay_s("in debt", 100, 100.0) == 900.0


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
    assert len(admission.calls) == 0


def test_S7_a_job_has_no_more_ranks_than_a_sum_can_name() -> None:
    admission, model = admission_of(), Model(num_layers=1, num_experts=4096, top_k=1)
    for num_ep_groups in (16, 17):
        cluster = Cluster(num_nodes=512, gpus_per_node=8, redundant_slots=1, num_ep_groups=num_ep_groups)
        if num_ep_groups == 16:
            admission.check_registration(model, cluster, 0)
        else:
            with pytest.raises(LimitExceeded, match="65536 ranks in all its EP groups, got 69632: 17 groups of 4096"):
                admission.check_registration(model, cluster, 0)
