"""The GPU-hours that balancing saves, as arithmetic."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.planning import Cluster, Model, Phase, PlanParams
from relibra.planning.cost import CostModel
from relibra.planning.execution import PhaseSummary
from relibra.planning.load import imbalance
from relibra.status.savings import NOTHING, Saving, TokenTime, add_up, assumption, compute_saving, write_hours
from relibra.store import JobRecord, StepSummary

US = TokenTime(us=1e6)
"""One second for one token copy."""
PHASE = PhaseSummary(
    phase=Phase.UPDATE,
    num_expected=4,
    num_reports=4,
    num_applied=4,
    imbalance=1.25,
    imbalance_plain=1.75,
    fallbacks={},
    plan_wait_s=0.0,
    reorder_s=0.0,
    replica_wait_s=0.0,
    reorder_sent_bytes=0,
    replica_sent_bytes=0,
    num_token_copies=100,
    duration_s=1e6,
    num_processes=4,
)


def step(*phases: PhaseSummary) -> StepSummary:
    return StepSummary(step=1, num_sequences=8, policies={}, submitted_at=None, plan=None, failure=None, phases=phases)


@given(
    loads=st.lists(st.lists(st.integers(0, 1000), min_size=8, max_size=8), min_size=1, max_size=5).filter(np.any),
    seed=st.integers(0, 1 << 16),
)
def test_what_is_saved_is_the_time_that_ranks_no_longer_wait_for_the_slowest(loads: list[list[int]], seed: int) -> None:
    before_CR = np.array(loads)
    realised_CR = np.random.default_rng(seed).permuted(before_CR, axis=1)
    realised_CR[:, :2] = realised_CR[:, :2].mean(axis=1, keepdims=True).astype(int)  # other loads, sometimes slower
    realised_CR[:, 2] += before_CR.sum(axis=1) - realised_CR.sum(axis=1)
    waited_copies = (before_CR.max(axis=1) - realised_CR.max(axis=1)).sum() * before_CR.shape[1]
    phase = replace(
        PHASE,
        imbalance=imbalance(realised_CR[:, None]),
        imbalance_plain=imbalance(before_CR[:, None]),
        num_token_copies=int(before_CR.sum()),
    )
    for name, num_passes in (("update", 3), ("recompute", 1)):
        found = compute_saving(step(replace(phase, phase=Phase(name))), US)
        assert found.saved_s == pytest.approx(num_passes * waited_copies, abs=1e-6)


@given(
    before=st.floats(1, 8),
    realised=st.floats(1, 8),
    duration_s=st.floats(1e-3, 1e5),
    num_copies=st.integers(0, 10**9),
    waits=st.tuples(*[st.floats(0, 100)] * 3),
)
def test_no_more_is_saved_than_the_phases_themselves_tell(before, realised, duration_s, num_copies, waits) -> None:
    plan_wait_s, reorder_s, replica_wait_s = waits
    phase = replace(
        PHASE,
        imbalance=realised,
        imbalance_plain=before,
        num_token_copies=num_copies,
        duration_s=duration_s,
        plan_wait_s=plan_wait_s,
        reorder_s=reorder_s,
        replica_wait_s=replica_wait_s,
    )
    found = compute_saving(step(phase), US)
    assert found.trained_s == pytest.approx(4 * duration_s)
    assert found.waited_s == pytest.approx(4 * sum(waits))
    assert 0 <= found.expert_s <= found.trained_s
    gained_s = found.saved_s + found.waited_s
    assert gained_s == pytest.approx((before / realised - 1) * found.expert_s, rel=1e-6, abs=1e-4)
    better = compute_saving(step(replace(phase, imbalance=max(1.0, realised * 0.9))), US)
    assert better.saved_s >= found.saved_s - 1e-6 * max(1.0, abs(found.saved_s))


def test_the_sum_of_steps_is_the_sum_of_their_parts() -> None:
    one = compute_saving(step(PHASE, replace(PHASE, phase=Phase.RECOMPUTE)), US)
    other = compute_saving(step(PHASE), US)
    both = add_up([one, NOTHING, other])
    assert (both.num_steps, both.num_left_out) == (2, 0)
    assert both.saved_s == one.saved_s + other.saved_s == pytest.approx((1.75 - 1.25) * 100 * (3 + 1 + 3))
    assert both.saved_gpu_hours == pytest.approx(350 / 3600)


@pytest.mark.parametrize(
    "unknown",
    [
        step(replace(PHASE, imbalance=None)),
        step(PHASE, replace(PHASE, phase=Phase.RECOMPUTE, num_token_copies=None)),
        step(replace(PHASE, duration_s=0.0)),
        step(replace(PHASE, imbalance_plain=None)),
    ],
)
def test_S9_a_step_of_which_something_is_unknown_is_left_out_and_counted(unknown: StepSummary) -> None:
    found = compute_saving(unknown, US)
    assert found == Saving(num_left_out=1)
    assert found.saved_gpu_hours is None
    assert "none of 1 reported steps counts" in assumption(found, US)
    assert "1 of 2 reported steps count" in assumption(found + compute_saving(step(PHASE), US), US)


def test_a_step_without_reports_is_nothing_yet() -> None:
    assert compute_saving(step(), US) == NOTHING
    assert assumption(NOTHING, US) == "No rank has reported a step yet."


def test_balancing_that_costs_more_than_it_saves_is_told() -> None:
    worse = compute_saving(step(replace(PHASE, imbalance=2.0, reorder_s=3.0)), US)
    assert worse.saved_s == pytest.approx((1.75 - 2.0) * 300 - 12)
    assert write_hours(worse.saved_s) == "-0.024"


def test_the_time_of_a_token_copy_is_the_one_that_the_job_registered() -> None:
    cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=0)
    sized = JobRecord(
        job_id="job",
        epoch=1,
        began_at=0.0,
        model=Model(num_layers=1, num_experts=2, top_k=1, expert_weight_size_bytes=4_000_000),
        cluster=cluster,
        params=PlanParams(),
    )
    assert TokenTime.of(sized) is None, "a guess for some GPU would be no measurement"
    measured = replace(sized, params=PlanParams(cost=CostModel(expert_tokens=(0, 10), expert_us=(5, 25))))
    assert TokenTime.of(measured) == TokenTime(us=2.0)
    assert "dispatch" not in assumption(compute_saving(step(PHASE), US), US)
    counted = replace(measured, params=PlanParams(cost=CostModel(token_size_bytes=8192)))
    assert not TokenTime.of(counted).lacks_dispatch  # one node
    across = TokenTime.of(replace(counted, cluster=replace(cluster, num_nodes=2)))
    assert across.lacks_dispatch
    assert "what they save there is not in the figure" in assumption(compute_saving(step(PHASE), across), across)
    assert compute_saving(step(PHASE), None) == Saving(num_left_out=1)
    assert "registered no cost model" in assumption(Saving(num_left_out=1), None)


def test_the_assumption_names_time_share_and_what_was_subtracted() -> None:
    text = assumption(compute_saving(step(replace(PHASE, duration_s=3600.0, plan_wait_s=360.0)), US), US)
    assert "one token copy takes 1e+06 µs" in text
    assert "by the cost model that the job registered, and" in text
    assert "experts take 2.6% of 4.000 GPU-hours of training" in text
    assert "0.400 GPU-hours, are subtracted" in text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [(0.0, "0.000"), (-0.1, "0.000"), (3600.0, "1.000"), (36_000.0, "10.0"), (3600.0 * 12_345.6, "12,346")],
)
def test_hours_have_as_many_decimals_as_they_need(time_s: float, text: str) -> None:
    assert write_hours(time_s) == text
