"""The trials of ranks: all hear the same, choose the same, and say it once."""

import logging

import pytest

from relibra.agent.plans.agreement import NOTHING, Offer, Spent
from relibra.agent.plans.outcome import StepOutcome
from relibra.agent.plans.trials import Trials
from relibra.planning import Cause, Phase, PlanId

PLAN_ID = PlanId(epoch=1, version=1)
NUM_RANKS = 3


def offers(time_s: float, num_token_copies: int = 1000) -> list[Offer]:
    """Return what ranks tell of a step in which the last rank was the slowest; they tell it to the nanosecond."""
    spent = [Spent(time_s * (rank + 1) / NUM_RANKS, num_token_copies) for rank in range(NUM_RANKS)]
    told = [Offer(step=2, plan_id=PLAN_ID, spent=each) for each in spent]
    return [Offer.from_tensor(each.to_tensor()) for each in told]


def outcome(plain: tuple[Cause, str] | None, **changes: object) -> StepOutcome:
    fields: dict[str, object] = {"step": 1, "reason": ""}
    fields |= {"applied": PLAN_ID} if plain is None else {"applied": None, "causes": plain[:1]}
    return StepOutcome(**(fields | changes))  # type: ignore[arg-type]


def train(trials: Trials, kind: Phase, planned_s: float, num_steps: int) -> list[Cause | None]:
    """Run steps whose plain ones take 1 s; return why each of them ran plain."""
    causes = []
    for _ in range(num_steps):
        plain = trials.plain(kind)
        causes.append(None if plain is None else plain[0])
        trials.note(kind, outcome(plain))
        trials.hear(offers(planned_s if plain is None else 1.0))
    return causes


def test_N1_slower_plans_end_the_trial_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    trials, silent = Trials(is_on=True, says=True), Trials(is_on=True, says=False)
    causes = train(trials, Phase.UPDATE, 1.1, 60)
    assert causes == train(silent, Phase.UPDATE, 1.1, 60), "ranks choose alike"
    assert set(causes[:7]) == {None, Cause.MEASURING}
    assert set(causes[7:57]) == {Cause.NOT_FASTER}
    assert causes[57] is None, "the next trial begins with a planned step"
    plain = trials.plain(Phase.UPDATE)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "run plain, without moves and copies, from now on: planned steps took 1.100 times" in record.getMessage()
    assert plain is None or plain[0] is Cause.MEASURING


def test_N1_kinds_of_steps_are_measured_apart(caplog: pytest.LogCaptureFixture) -> None:
    trials = Trials(is_on=True, says=True)
    for _ in range(12):
        train(trials, Phase.RECOMPUTE, 1.2, 1)
        train(trials, Phase.UPDATE, 0.8, 1)
    plain = trials.plain(Phase.RECOMPUTE)
    assert plain is not None
    assert plain[0] is Cause.NOT_FASTER
    assert "1.200 times as long per token as plain ones" in plain[1]
    assert trials.plain(Phase.UPDATE) is None
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "steps that begin with phase recompute run plain, without moves and copies, from now on",
        "steps that begin with phase update run planned from now on",
    ]


def test_N1_tokens_count_and_not_steps() -> None:
    """Planned steps have twice the tokens, and take 1.5 times as long."""
    trials = Trials(is_on=True, says=False)
    for _ in range(12):
        plain = trials.plain(Phase.UPDATE)
        trials.note(Phase.UPDATE, outcome(plain))
        trials.hear(offers(1.5, 2000) if plain is None else offers(1.0))
    assert trials.plain(Phase.UPDATE) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"applied": None, "kept": PLAN_ID, "causes": (Cause.LATE,)},
        {"applied": None, "kept": PLAN_ID, "causes": (Cause.UNDONE,)},
    ],
)
def test_steps_of_an_outage_say_nothing_of_plans(changes: dict[str, object]) -> None:
    trials = Trials(is_on=True, says=False)
    for _ in range(50):
        trials.note(Phase.UPDATE, outcome(None, **changes))
        trials.hear(offers(99.0))
    assert set(train(trials, Phase.UPDATE, 0.8, 13)) == {None, Cause.MEASURING}
    assert trials.plain(Phase.UPDATE) is None


def test_steps_that_were_not_measured_or_are_repeated_do_not_count() -> None:
    trials = Trials(is_on=True, says=False)
    train(trials, Phase.UPDATE, 1.0, 2)
    before = trials.plain(Phase.UPDATE)
    for told in (offers(1.0, 0), [Offer(step=1, plan_id=PLAN_ID, spent=NOTHING)]):
        trials.note(Phase.UPDATE, outcome(None))
        trials.hear(told)
    trials.note(Phase.UPDATE, outcome(None))
    trials.drop()
    trials.hear(offers(5.0))
    assert trials.plain(Phase.UPDATE) == before


def test_without_guard_every_step_is_planned() -> None:
    assert set(train(Trials(is_on=False, says=True), Phase.UPDATE, 5.0, 40)) == {None}
