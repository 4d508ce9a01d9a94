"""What two ranks, here threads, hear of passes that a scripted planner takes, refuses or loses."""

import logging
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TypeVar
from unittest import mock

import pytest

from harness.thread_ranks import ThreadRanks
from relibra.errors import InvalidInput, StaleEpoch, Unavailable, UnknownJob
from relibra.planning import Cluster, Model
from relibra.plugins import planned_passes as module
from relibra.plugins.planned_passes import PlannedPasses
from relibra.plugins.settings import PluginSettings

MODEL = Model(num_layers=1, num_experts=4, top_k=2)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1)
WORLD = 2
T = TypeVar("T")


class Job:
    """The passes of both ranks, and what the planner answers them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ranks = ranks = ThreadRanks(WORLD)
        self.clock = mock.Mock(return_value=0.0)
        self.reported = mock.Mock(return_value="a schedule")
        self.submitted = mock.Mock()
        monkeypatch.setattr(module, "dist", ranks)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=self.clock))
        monkeypatch.setattr(module, "report_rank", self.reported)
        monkeypatch.setattr(module, "submit_step", self.submitted)
        settings = PluginSettings(planner="planner:7420", job="job")
        with (
            mock.patch.object(module, "PlannerClient", autospec=True) as client,
            mock.patch.object(module, "RolloutReporter", autospec=True),
        ):
            self.passes = ranks.run(
                lambda rank: PlannedPasses(
                    settings, MODEL, CLUSTER, ep_group=0, ep_rank=rank, is_reporting=True, attempt="launch"
                )
            )
        self.register, self.end = client.return_value.register_job, client.return_value.end_attempt
        self._each(PlannedPasses.register)

    def submit(self, pass_index: int) -> list[bool]:
        return self._each(lambda passes: passes.submit(pass_index, mock.Mock(), timeout_s=1.0))

    def has_planner(self) -> list[bool]:
        return self._each(PlannedPasses.has_planner)

    def lose(self) -> None:
        self._each(PlannedPasses.note_lost)

    def _each(self, call: Callable[[PlannedPasses], T]) -> list[T]:
        return self._ranks.run(lambda rank: call(self.passes[rank]))


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def test_a_pass_that_the_planner_takes_is_submitted_once_for_all_ranks(job: Job) -> None:
    assert job.submit(0) == [True, True]
    assert job.reported.call_count == WORLD
    assert job.submitted.call_count == 1
    assert job.submitted.call_args.args[3] == ["a schedule"] * WORLD


def test_L1_no_rank_waits_for_the_plan_of_a_pass_that_the_planner_refused(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.submitted.side_effect = InvalidInput("too many micro-batches")
    for index in range(3):
        assert job.submit(index) == [False, False]
    assert caplog.text.count("too many micro-batches") == 1, "the log says it once"
    assert "work again" not in caplog.text, "reports that are taken are no schedules"
    job.submitted.side_effect = None
    assert job.submit(3) == [True, True]
    assert caplog.text.count("calls to the planner work again, after 3 that failed") == 1


def test_S9_a_batch_that_cannot_be_read_on_one_rank_stops_no_rank(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.reported.side_effect = lambda *args, **_: args[3] != "rank-0" or {}["routed_experts"]  # rank 0 alone
    assert job.submit(0) == [False, False]
    (record,) = [each for each in caplog.records if "does not know the micro-batches" in each.getMessage()]
    assert record.levelno == logging.ERROR
    assert "KeyError: 'routed_experts'" in record.getMessage()
    assert record.exc_info is not None
    assert not job.submitted.called


@pytest.mark.parametrize("error", [Unavailable("away"), UnknownJob("Redis lost it"), StaleEpoch("another launch")])
@pytest.mark.parametrize("place", ["reported", "submitted"])
def test_L2_a_job_that_is_lost_is_registered_again_after_a_minute(job: Job, place: str, error: Exception) -> None:
    getattr(job, place).side_effect = error
    assert job.submit(0) == [False, False]
    getattr(job, place).side_effect = None
    job.clock.return_value = 59.0
    assert job.submit(1) == [False, False]
    assert job.register.call_count == 1
    job.clock.return_value = 60.0
    assert job.submit(2) == [True, True]
    assert job.register.call_count == 2


def test_L2_a_job_that_submits_nothing_is_registered_again_too(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.lose()
    assert job.has_planner() == [False, False]
    job.register.side_effect = Unavailable("away")
    job.clock.return_value = 60.0
    assert job.has_planner() == [False, False]
    job.register.side_effect = None
    job.clock.return_value = 120.0
    assert job.has_planner() == [True, True]
    assert job.register.call_count == 3
    assert caplog.text.count("calls to the planner work again, after 1 that failed") == 1


def test_closing_ends_the_calls_of_every_rank_and_the_attempt_once(job: Job) -> None:
    for passes in job.passes:
        passes.close()
        assert passes._planner.close.called
        assert passes._reporter.close.called
    job.end.assert_called_once_with("job")


def test_a_job_whose_engine_builds_another_model_has_not_ended(job: Job) -> None:
    for passes in job.passes:
        passes.close(goes_on=True)
        assert passes._planner.close.called
    job.end.assert_not_called()


def test_L1_a_planner_that_is_away_at_the_end_keeps_no_rank(job: Job) -> None:
    job.end.side_effect = Unavailable("the planner is away")
    job.passes[0].close()
    assert job.passes[0]._planner.close.called


def test_S9_an_error_that_ends_the_process_tells_of_no_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", RuntimeError("out of memory"), raising=False)
    job.passes[0].close()
    job.end.assert_not_called()


def test_S9_a_close_that_an_error_brings_tells_of_no_end(job: Job) -> None:
    try:
        raise RuntimeError("out of memory")
    except RuntimeError:
        job.passes[0].close()
    assert job.passes[0]._planner.close.called
    job.end.assert_not_called()
