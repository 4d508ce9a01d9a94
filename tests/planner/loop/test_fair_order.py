from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from relibra.planner.loop.fair_order import next_turns
from relibra.store import PendingStep


def step(job_id: str, number: int, submitted_at: float) -> PendingStep:
    return PendingStep(job_id=job_id, step=number, submitted_at=submitted_at)


def test_the_longest_waiting_step_comes_first_among_jobs_without_a_turn() -> None:
    pending = [step("late", 1, 5.0), step("early", 9, 1.0), step("early", 10, 2.0)]
    assert next_turns(pending, {}, set()) == ["early", "late"]


def test_a_job_that_is_solved_for_waits() -> None:
    assert next_turns([step("busy", 1, 0.0), step("free", 1, 1.0)], {}, {"busy"}) == ["free"]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=30), st.integers(0, 3))
def test_S6_no_job_gets_a_second_turn_while_another_waits_for_its_first(jobs: list[str], flood: int) -> None:
    waiting = Counter(jobs) + Counter({"a": 10 * flood})
    rounds, last_turn, order = +waiting, dict[str, int](), []
    while rounds:
        pending = [step(job, number, 0.0) for job, number in rounds.items()]
        job = next_turns(pending, last_turn, set())[0]
        last_turn[job] = len(order) + 1
        order.append(job)
        rounds = rounds - Counter([job])
    first = order[: len(waiting)]
    assert sorted(first) == sorted(waiting)
