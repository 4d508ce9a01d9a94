from types import SimpleNamespace

import pytest

from relibra.status.health import JobState
from relibra.status.overview import Order, arrange, count_states, fold


def glance(job_id: str, state: JobState, began_at: float, owner: str = "host:1") -> SimpleNamespace:
    job = SimpleNamespace(job_id=job_id, began_at=began_at, owner=owner)
    return SimpleNamespace(job=job, health=SimpleNamespace(verdict=state))


GLANCES = [
    glance("dead", JobState.WAITING, 5),
    glance("Beta", JobState.WELL, 1),
    glance("alpha", JobState.WELL, 3),
    glance("broken", JobState.FAILING, 2, owner="node-7:4711"),
]


def names(*arguments: object) -> list[str]:
    return [each.job.job_id for each in arrange(GLANCES, *arguments)]


def test_jobs_in_trouble_stand_first_and_those_that_wait_last() -> None:
    assert names(None, "", Order.STATE) == ["broken", "alpha", "Beta", "dead"]
    assert names(None, "", Order.NAME) == ["alpha", "Beta", "broken", "dead"]
    assert names(None, "", Order.NEWEST) == ["dead", "alpha", "broken", "Beta"]


@pytest.mark.parametrize(
    ("state", "text", "found"),
    [(JobState.WELL, "", ["alpha", "Beta"]), (None, " BET", ["Beta"]), (None, "node-7", ["broken"]), (None, "x", [])],
)
def test_jobs_are_found_by_state_and_by_parts_of_id_and_owner(
    state: JobState | None, text: str, found: list[str]
) -> None:
    assert names(state, text, Order.STATE) == found


def test_many_jobs_that_wait_or_ended_are_folded_and_counted() -> None:
    many = [*GLANCES, *(glance(f"dead-{number}", JobState.WAITING, 0) for number in range(60))]
    many += [glance(f"ended-{number}", JobState.ENDED, 0) for number in range(12)]
    shown, folded = fold(arrange(many, None, "", Order.STATE))
    assert [each.job.job_id for each in shown[:4]] == ["broken", "alpha", "Beta", "dead"]
    assert (len(shown), folded) == (23, {JobState.WAITING: 51, JobState.ENDED: 2})


def test_states_are_counted_the_most_urgent_first() -> None:
    assert count_states(GLANCES) == [(JobState.FAILING, 1), (JobState.WELL, 2), (JobState.WAITING, 1)]


def test_every_state_has_a_place() -> None:
    every = [glance(state, state, 0) for state in JobState]
    assert len(arrange(every, None, "", Order.STATE)) == len(JobState)
