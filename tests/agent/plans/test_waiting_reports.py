"""Reports wait in order, lose only the oldest, and go back with the training."""

import logging

import pytest

from harness.agent.reports import report
from relibra.agent.plans.waiting_reports import QueuedReport, WaitingReports


def waiting(*steps: int) -> WaitingReports:
    reports = WaitingReports()
    for step in steps:
        reports.add(report(step), epoch=7)
    return reports


def first(reports: WaitingReports) -> QueuedReport:
    assert reports.first is not None
    return reports.first


def test_a_rollback_drops_the_reports_of_repeated_steps_only() -> None:
    reports = waiting(1, 2, 3)
    reports.go_back(2)
    # What the training does not repeat is handed over in its new attempt.
    assert [(each.report.step, each.epoch) for each in reports] == [(1, 0)]


def test_S7_the_oldest_reports_are_dropped_and_the_log_says_so_once_and_that_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        reports = waiting(*range(259))
        assert (len(reports), first(reports).report.step) == (256, 3)
        reports.is_answered(first(reports))
    assert first(reports).report.step == 4
    assert [each.getMessage() for each in caplog.records] == [
        "dropped the report of step 0, update: the planner is away for too long (logged once until it is over)",
        "reports reach the planner again, after 3 were dropped",
    ]


def test_a_report_that_was_dropped_while_it_was_sent_takes_no_other_one_along() -> None:
    reports = waiting(1, 2)
    sent = first(reports)
    reports.go_back(2)
    reports.is_answered(sent)
    assert [each.report.step for each in reports] == [1]
