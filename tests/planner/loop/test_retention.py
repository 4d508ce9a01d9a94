"""The decision which steps expire, for any steps and limits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.planner.loop.retention import steps_to_expire, summaries_to_drop
from relibra.planner.settings import PlannerSettings
from relibra.store import ExpiryCause, RetainedStep
from relibra.store.keys import RETAINED_ATTEMPTS

HOUR_S = 3600.0
LIMITS = PlannerSettings.model_construct(retained_steps=8, retained_s=HOUR_S, retained_bytes=1000, max_open_steps=2)


def planned(step: int, *, size_bytes: int = 1, age_s: float = 0.0) -> RetainedStep:
    return RetainedStep(
        step=step,
        size_bytes=size_bytes,
        age_s=age_s,
        is_open=False,
        is_pending=False,
        is_planned=True,
        num_reports=0,
    )


def collecting(step: int, *, size_bytes: int = 1, age_s: float = 0.0) -> RetainedStep:
    return replace(planned(step, size_bytes=size_bytes, age_s=age_s), is_open=True, is_planned=False)


def solving(step: int, *, size_bytes: int = 1, age_s: float = 0.0) -> RetainedStep:
    return replace(collecting(step, size_bytes=size_bytes, age_s=age_s), is_pending=True)


def failed(step: int, *, size_bytes: int = 1, age_s: float = 0.0) -> RetainedStep:
    return replace(planned(step, size_bytes=size_bytes, age_s=age_s), is_planned=False)


def expired(
    steps: list[RetainedStep],
    *older: list[RetainedStep],
    silent_s: float = 0.0,
    limits: PlannerSettings = LIMITS,
) -> list[dict[int, ExpiryCause]]:
    found = steps_to_expire([steps, *older], silent_s, limits)
    return [{each.step: cause for each, cause in causes.items()} for causes in found]


def test_the_newest_steps_stay() -> None:
    assert expired([planned(step) for step in range(1, 11)]) == [{1: ExpiryCause.STEPS, 2: ExpiryCause.STEPS}]


def test_steps_expire_until_the_rest_fits_oldest_attempt_first() -> None:
    current = [planned(step, size_bytes=200) for step in (1, 2, 3, 4)]
    before = [planned(step, size_bytes=200) for step in (1, 2, 3)]
    by_size = ExpiryCause.BYTES
    assert expired(current, before) == [{}, {1: by_size, 2: by_size}]
    tight = LIMITS.model_copy(update={"retained_bytes": 500})
    assert expired(current, before, limits=tight) == [{1: by_size, 2: by_size}, {1: by_size, 2: by_size, 3: by_size}]


def test_steps_expire_by_age() -> None:
    steps = [planned(1, age_s=2 * HOUR_S), planned(2, age_s=HOUR_S + 1), planned(3), planned(4), planned(5)]
    assert expired(steps) == [{1: ExpiryCause.AGE, 2: ExpiryCause.AGE}]


def test_of_an_idle_job_only_the_newest_plan_stays_because_the_next_one_starts_from_it() -> None:
    steps = [planned(step, age_s=2 * HOUR_S) for step in (1, 2, 3)] + [failed(4, age_s=2 * HOUR_S)]
    assert expired(steps) == [{1: ExpiryCause.AGE, 2: ExpiryCause.AGE}]
    assert expired(steps, silent_s=2 * HOUR_S) == [dict.fromkeys((1, 2, 4), ExpiryCause.AGE)]


@pytest.mark.parametrize("under_way", [collecting, solving])
def test_a_step_under_way_stays(under_way: object) -> None:
    steps = [planned(1), planned(2), planned(3), under_way(4, size_bytes=10_000, age_s=99 * HOUR_S)]  # type: ignore[operator]
    assert expired(steps, silent_s=99 * HOUR_S) == [dict.fromkeys((1, 2), ExpiryCause.BYTES)]


def test_a_step_whose_schedule_never_came_expires_after_a_later_one_was_planned() -> None:
    old_s = 2 * HOUR_S
    steps = [collecting(1, age_s=old_s), planned(2, age_s=old_s), planned(3), planned(4), collecting(5, age_s=old_s)]
    assert expired(steps) == [{1: ExpiryCause.AGE, 2: ExpiryCause.AGE}]


def test_attempts_that_many_newer_ones_replaced_keep_no_full_data() -> None:
    attempts = [[planned(1), collecting(2)] for _ in range(RETAINED_ATTEMPTS + 1)]
    found = expired(*attempts)
    assert found[:-1] == [{}] * RETAINED_ATTEMPTS
    assert found[-1] == {1: ExpiryCause.ATTEMPTS, 2: ExpiryCause.ATTEMPTS}


SIZES = st.integers(0, 400)
AGES = st.floats(0, 2 * HOUR_S)
ONE_STEP = st.one_of(
    *(st.builds(make, st.just(0), size_bytes=SIZES, age_s=AGES) for make in (planned, collecting, solving, failed))
)
STEPS = st.lists(ONE_STEP, max_size=12).map(lambda each: [replace(one, step=index) for index, one in enumerate(each)])
ATTEMPTS = st.lists(STEPS, min_size=1, max_size=RETAINED_ATTEMPTS + 1)
ANY_LIMITS = st.builds(
    PlannerSettings.model_construct,
    retained_steps=st.integers(2, 10),
    retained_s=AGES,
    retained_bytes=st.integers(1, 4000),
    max_open_steps=st.integers(1, 4),
)


@given(attempts=ATTEMPTS, silent_s=AGES, limits=ANY_LIMITS)
def test_S7_what_stays_is_within_the_limits_or_needed(
    attempts: list[list[RetainedStep]], silent_s: float, limits: PlannerSettings
) -> None:
    found = steps_to_expire(attempts, silent_s, limits)
    kept = [[each for each in steps if each not in gone] for steps, gone in zip(attempts, found, strict=True)]
    current = kept[0]
    ended = [each.step for each in attempts[0] if not each.is_open and not each.is_pending]
    latest_planned = [each.step for each in attempts[0] if each.is_planned][-1:]

    # Steps that are still needed stay.
    assert {each.step for each in attempts[0] if each.is_pending} <= {each.step for each in current}
    assert {each.step for each in attempts[0] if each.is_open and each.step > max(ended, default=-1)} <= {
        each.step for each in current
    }
    assert set(latest_planned) <= {each.step for each in current}
    is_alive = silent_s <= limits.retained_s
    if is_alive:
        assert set(ended[-min(limits.max_open_steps, limits.retained_steps) :]) <= {each.step for each in current}

    # Anything else is within every limit.
    fetchable = ended[-min(limits.max_open_steps, limits.retained_steps) :] if is_alive else []
    spare = [
        each
        for each in current
        if not each.is_pending
        and not (each.is_open and each.step > max(ended, default=-1))
        and each.step not in fetchable
        and each.step not in latest_planned
    ]
    total_bytes = sum(each.size_bytes for steps in kept for each in steps)
    if total_bytes > limits.retained_bytes:
        assert not spare
        assert not any(kept[1:])
    assert all(each.age_s <= limits.retained_s for steps in [spare, *kept[1:]] for each in steps)
    assert all(len(steps) <= limits.retained_steps for steps in kept[1:])
    assert not any(kept[RETAINED_ATTEMPTS:])

    # Room is made oldest first, and no more than the limits ask for.
    for steps, gone in zip([spare, *kept[1:]], found, strict=True):
        for_room = [each for each, cause in gone.items() if cause in (ExpiryCause.BYTES, ExpiryCause.STEPS)]
        assert all(each.step < another.step for each in for_room for another in steps)
    assert steps_to_expire(kept, silent_s, limits) == [{} for _ in kept]
    aged = [each for gone in found for each, cause in gone.items() if cause is ExpiryCause.AGE]
    assert all(each.age_s > limits.retained_s for each in aged)
    by_size = [each for gone in reversed(found) for each, cause in gone.items() if cause is ExpiryCause.BYTES]
    assert not by_size or total_bytes + by_size[-1].size_bytes > limits.retained_bytes


def test_S7_summaries_take_half_of_the_bytes_at_most_and_those_of_the_oldest_attempts_go() -> None:
    assert summaries_to_drop([400, 0, 60, 40], LIMITS) == []
    assert summaries_to_drop([400, 0, 60, 50], LIMITS) == [3]
    assert summaries_to_drop([400, 300, 60, 50], LIMITS) == [3, 2, 1]
    assert summaries_to_drop([9000], LIMITS) == []


def test_S7_summaries_count_into_the_bytes_of_a_job() -> None:
    steps = [planned(step, size_bytes=200) for step in range(1, 6)]
    assert steps_to_expire([steps], 0.0, LIMITS, 0) == [{}]
    assert steps_to_expire([steps], 0.0, LIMITS, 300) == [dict.fromkeys(steps[:2], ExpiryCause.BYTES)]
