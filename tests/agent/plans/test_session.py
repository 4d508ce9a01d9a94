"""The session with a gRPC server on a real socket. The test scripts the answers, to reach each moment of an outage."""

import dataclasses
import socket
import time
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import pytest

from harness.agent.reports import report
from harness.agent.scripted_planner import PATIENT_S, ScriptedPlanner
from harness.distributed.plans import random_plan
from relibra.agent import AgentConfig, PlanAnswer, Session
from relibra.agent.plans import session as session_module
from relibra.errors import InvalidInput, TooManyCalls
from relibra.planning import Cause, Cluster, Model, StepPlan
from relibra.wire.client import PlannerClient

MODEL = Model(num_layers=2, num_experts=4, top_k=1)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1)


@pytest.fixture
def planner() -> Iterator[ScriptedPlanner]:
    planner = ScriptedPlanner(MODEL, CLUSTER)
    yield planner
    planner.hold.set()
    planner.stop()


@pytest.fixture
def session(planner: ScriptedPlanner, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(session_module, "_LOOK_S", 0.1)
    session = Session(AgentConfig(planner_address=planner.address, job_id="job", model=MODEL, cluster=CLUSTER))
    yield session
    session.close()


@pytest.fixture
def plan() -> StepPlan:
    return random_plan(1, 0, MODEL, CLUSTER, 2)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


def test_a_plan_that_is_there_is_fetched(planner: ScriptedPlanner, session: Session, plan: StepPlan) -> None:
    planner.plans[3] = plan
    got, reason, _ = session.wait(3, PATIENT_S)
    assert got is not None
    assert np.array_equal(got.home_rank_LE, plan.home_rank_LE)
    assert reason == plan.reason
    assert planner.asked == [("job", 3)]


def test_prefetching_gets_the_plan_before_anybody_waits(
    planner: ScriptedPlanner, session: Session, plan: StepPlan
) -> None:
    planner.plans[0] = plan
    session.prefetch(0)
    until(lambda: planner.asked)
    until(lambda: session.wait(0, 0.01)[0] is not None)


def test_the_planner_holds_a_question_open_only_while_somebody_waits(
    planner: ScriptedPlanner, session: Session
) -> None:
    session.prefetch(0)
    until(lambda: len(planner.held_ms) > 1)
    assert set(planner.held_ms) == {0}
    until(lambda: session.wait(0, 0.05)[0] is None and planner.held_ms[-1] > 0)


def test_prefetching_one_step_is_in_nobody_s_way_who_goes_on_with_another(
    planner: ScriptedPlanner, session: Session, plan: StepPlan
) -> None:
    planner.plans[7] = plan
    session.prefetch(1)
    until(lambda: ("job", 1) in planner.asked)
    assert session.wait(7, PATIENT_S)[0] is not None
    assert planner.asked[-1] == ("job", 7)


def test_what_was_refused_in_advance_is_asked_for_again_when_its_step_begins(
    planner: ScriptedPlanner, session: Session, plan: StepPlan
) -> None:
    planner.errors[0] = InvalidInput("the job is being registered again")
    session.prefetch(0)
    until(lambda: session._fetched)
    planner.errors.clear()
    planner.plans[0] = plan
    assert session.wait(0, PATIENT_S)[0] is not None


def test_a_plan_published_while_the_step_waits_arrives(
    planner: ScriptedPlanner, session: Session, plan: StepPlan
) -> None:
    session.prefetch(0)
    until(lambda: len(planner.asked) > 1)
    planner.plans[0] = plan
    assert session.wait(0, PATIENT_S)[0] is not None


def test_L1_a_plan_that_does_not_come_is_waited_for_until_the_deadline(
    planner: ScriptedPlanner, session: Session
) -> None:
    session.prefetch(0)
    until(lambda: len(planner.asked) > 1)
    got, reason, _ = session.wait(0, 0.2)
    assert got is None
    assert reason == "no plan of step 0 within 0.2 s: the schedule is not there yet"


def test_L1_a_planner_that_hangs_does_not_hold_the_step(planner: ScriptedPlanner, session: Session) -> None:
    planner.hold.clear()
    session.prefetch(0)
    until(lambda: planner.asked)
    got, reason, _ = session.wait(0, 0.1)
    assert got is None
    assert "has not answered yet" in reason
    assert not planner.hold.is_set()


def test_L1_a_planner_that_dies_while_it_is_asked_does_not_hold_the_step(
    planner: ScriptedPlanner, session: Session, plan: StepPlan
) -> None:
    planner.plans = {0: plan, 1: plan}
    planner.hold.clear()
    session.prefetch(0)
    until(lambda: planner.asked)
    planner.stop()
    until(lambda: "did not answer" in session.wait(0, 0.3).reason)
    planner.hold.set()
    planner.start()
    until(lambda: session.wait(1, PATIENT_S).plan is not None)  # a wait is short until the planner answers


def test_S1_a_plan_that_comes_too_late_is_not_taken_for_that_of_the_next_step(
    planner: ScriptedPlanner, session: Session, plan: StepPlan
) -> None:
    planner.plans[0] = plan
    planner.hold.clear()
    session.prefetch(0)
    until(lambda: planner.asked)
    assert session.wait(0, 0.1).plan is None
    session.prefetch(1)
    planner.hold.set()
    answers = list[PlanAnswer]()

    def is_answered() -> bool:
        answers.append(session.wait(1, 0.1))
        return "the schedule is not there yet" in answers[-1].reason

    until(is_answered)
    assert all(each.plan is None for each in answers)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Model(num_layers=3, num_experts=4, top_k=1), id="more-layers"),
        pytest.param(Model(num_layers=2, num_experts=8, top_k=1), id="more-experts"),
    ],
)
def test_S2_a_plan_for_another_model_is_refused_and_the_next_one_taken(
    planner: ScriptedPlanner, session: Session, plan: StepPlan, other: Model
) -> None:
    planner.plans = {0: random_plan(1, 0, other, CLUSTER, 2), 1: plan}
    got, reason, _ = session.wait(0, PATIENT_S)
    assert got is None
    assert "home_rank" in reason
    assert session.wait(1, PATIENT_S)[0] is not None


def test_S9_a_refusal_of_every_step_is_logged_once_and_so_is_its_end(
    planner: ScriptedPlanner, session: Session, plan: StepPlan, caplog: pytest.LogCaptureFixture
) -> None:
    planner.errors = {step: InvalidInput(f"the schedule of step {step} is wrong") for step in range(3)}
    planner.plans[3] = plan
    for step in range(4):
        session.wait(step, PATIENT_S)
    assert [each.getMessage() for each in caplog.records if each.name.endswith("trouble")] == [
        "no plan of step 0: the schedule of step 0 is wrong (logged once until it is over)",
        "the planner hands out plans again, after 3 refusals",
    ]


def test_a_step_the_planner_refuses_for_good_is_not_waited_for(planner: ScriptedPlanner, session: Session) -> None:
    planner.errors[0] = InvalidInput("the schedule is wrong")
    began = time.monotonic()
    assert session.wait(0, PATIENT_S) == (None, "the schedule is wrong", Cause.LATE)
    assert time.monotonic() - began < PATIENT_S
    assert len(planner.asked) == 1


def test_L2_the_step_after_an_outage_has_a_plan_again(
    planner: ScriptedPlanner, session: Session, plan: StepPlan
) -> None:
    planner.plans = {0: plan, 2: plan}
    assert session.wait(0, PATIENT_S)[0] is not None
    planner.stop()
    until(lambda: "did not answer" in session.wait(1, 0.3).reason)
    planner.start()
    until(lambda: session.wait(2, PATIENT_S).plan is not None)  # a wait is short until the planner answers


def test_L1_only_the_first_step_of_an_outage_waits_for_the_whole_timeout(
    planner: ScriptedPlanner, session: Session, plan: StepPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_AWAY_WAIT_S", 0.3)
    planner.plans = {3: plan}
    planner.stop()
    until(lambda: "within 0.1 s: the planner did not answer" in session.wait(0, 0.1).reason)
    began = time.monotonic()
    reason = session.wait(2, PATIENT_S).reason
    assert time.monotonic() - began < PATIENT_S / 2
    assert "within 0.3 s, instead of 30 s, because the planner has been away since an earlier step" in reason
    assert "did not answer" in reason
    planner.start()
    session.prefetch(3)
    until(lambda: not session._is_away)
    assert session.wait(3, PATIENT_S).plan is not None


def test_L1_a_short_wait_becomes_a_whole_one_when_the_planner_answers(
    planner: ScriptedPlanner, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_AWAY_WAIT_S", 1.5)
    session.prefetch(0)
    until(lambda: session._last_error == "the schedule is not there yet")  # connected, so that it hears at once

    def is_whole() -> bool:
        session._is_away = True
        return session.wait(0, 2.0).reason == "no plan of step 0 within 2 s: the schedule is not there yet"

    until(is_whole)  # unless the machine is too busy for an answer within the short wait


def test_S6_an_agent_beyond_the_limit_on_calls_knows_why_and_does_not_ask_again_at_once(
    planner: ScriptedPlanner, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_CROWDED_S", 3600.0)
    monkeypatch.setattr(session_module, "_RETRY_S", 0.0)  # every answer counts as one that took long, as refusals do
    planner.errors[0] = TooManyCalls("the job has too many calls open")
    until(lambda: "too many calls" in session.wait(0, 0.1).reason)
    num_asked = len(planner.asked)
    assert session.wait(1, 0.5).reason == "no plan of step 1 within 0.5 s: the job has too many calls open"
    assert len(planner.asked) == num_asked
    assert not session._is_away
    session.close()
    assert session._thread is not None
    assert not session._thread.is_alive(), "it waits on"


def test_S6_an_agent_asks_again_after_a_while(
    planner: ScriptedPlanner, session: Session, plan: StepPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_CROWDED_S", 0.1)
    planner.errors[0] = TooManyCalls("the job has too many calls open")
    until(lambda: "too many calls" in session.wait(0, 0.1).reason)
    planner.errors.clear()
    planner.plans[0] = plan
    assert session.wait(0, PATIENT_S).plan is not None


def test_L2_an_error_that_nobody_expects_costs_one_plan_or_report_and_not_all_later_ones(
    planner: ScriptedPlanner,
    session: Session,
    plan: StepPlan,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    planner.plans = {0: plan, 1: plan}
    with monkeypatch.context() as broken:
        broken.setattr(PlannerClient, "fetch_plan", mock.Mock(side_effect=TypeError("not a number")))
        broken.setattr(PlannerClient, "report_execution", mock.Mock(side_effect=MemoryError("no memory")))
        began = time.monotonic()
        got, reason, _ = session.wait(0, PATIENT_S)
        assert time.monotonic() - began < PATIENT_S / 2
        assert got is None
        assert "TypeError: not a number" in reason
        session.report(report(0))
        until(lambda: not session._reports)
    assert session.wait(1, PATIENT_S).plan is not None
    session.report(report(1))
    until(lambda: planner.reports)
    assert [each.step for each in planner.reports] == [1]
    logged = [each for each in caplog.records if each.exc_info]
    assert ["TypeError" in each.getMessage() for each in logged] == [True, False]


def test_reports_of_an_outage_are_delivered_after_it(planner: ScriptedPlanner, session: Session) -> None:
    planner.stop()
    session.report(report(0))
    assert session.wait(0, 0.3)[0] is None
    session.report(report(1))
    planner.start()
    until(lambda: len(planner.reports) == 2)
    assert [each.step for each in planner.reports] == [0, 1]
    assert planner.reports[0].realised_load_ML.tolist() == [[1, 1], [1, 1]]


def test_L4_closing_delivers_what_is_pending(
    planner: ScriptedPlanner, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_CLOSE_S", PATIENT_S)
    for step in range(20):
        session.report(report(step))
    session.close()
    assert [each.step for each in planner.reports] == list(range(20))


def test_closing_ends_a_fetch_under_way_without_a_word(
    planner: ScriptedPlanner, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    planner.hold.clear()
    session.prefetch(1)
    until(lambda: planner.asked)
    session.close()
    assert session._thread is not None
    assert not session._thread.is_alive()
    assert caplog.records == []


def test_S7_reports_of_a_long_outage_do_not_pile_up(planner: ScriptedPlanner, session: Session) -> None:
    planner.stop()
    for step in range(300):
        session.report(report(step))
    planner.start()
    until(lambda: planner.reports and planner.reports[-1].step == 299)
    assert len(planner.reports) <= 257


def test_a_session_that_was_never_used_closes_without_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as planner:
        address = f"127.0.0.1:{planner.getsockname()[1]}"
        Session(AgentConfig(planner_address=address, job_id="job", model=MODEL, cluster=CLUSTER)).close()
        planner.setblocking(False)
        with pytest.raises(BlockingIOError):
            planner.accept()


def test_S4_nothing_that_was_fetched_or_reported_before_a_rollback_is_used_after_it(
    planner: ScriptedPlanner, session: Session, plan: StepPlan
) -> None:
    planner.plans[3] = plan
    session.prefetch(3)
    until(lambda: 3 in session._fetched)
    planner.plans[3] = again = dataclasses.replace(plan, reason="sampled again")
    session.rollback(3)
    assert session.wait(3, PATIENT_S).reason == again.reason


def test_S4_a_question_from_before_a_rollback_brings_no_plan_to_the_repeated_step(
    session: Session, plan: StepPlan
) -> None:
    answers = [plan, dataclasses.replace(plan, reason="sampled again")]
    events: list[Callable[[], None]] = [lambda: session.rollback(3), lambda: session.prefetch(3)]

    def call(
        *_: object, **__: object
    ) -> StepPlan:  # the thread has decided to ask for step 3, and takes long over this
        while events:
            events.pop(0)()
        return answers.pop(0)

    with mock.patch.object(session._membership, "call", call):
        session.prefetch(3)
        until(lambda: 3 in session._fetched)
        assert session.wait(3, PATIENT_S).reason == "sampled again"
