"""The finding of a check."""

from dataclasses import dataclass
from enum import StrEnum


class CheckResult(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    """The subject works, but not as well as it could."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """The check did not run, or does not apply to this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check and the reason for it."""

    subject: str
    verdict: CheckResult
    reason: str
    fix: str = ""
    """How to fix the problem; empty unless the result is a warning or a failure."""
    cost: str = ""
    """The price of the fix, if it has one."""


def ok(subject: str, reason: str) -> Finding:
    """Return a finding without problems."""
    return Finding(subject=subject, verdict=CheckResult.OK, reason=reason)


def warning(subject: str, reason: str, fix: str, cost: str = "") -> Finding:
    """Return a finding about a subject that works but could be better."""
    return Finding(subject=subject, verdict=CheckResult.WARNING, reason=reason, fix=fix, cost=cost)


def failed(subject: str, reason: str, fix: str, cost: str = "") -> Finding:
    """Return a finding about a subject that does not work."""
    return Finding(subject=subject, verdict=CheckResult.FAILED, reason=reason, fix=fix, cost=cost)


def skipped(subject: str, reason: str) -> Finding:
    """Return a finding of a check that did not run."""
    return Finding(subject=subject, verdict=CheckResult.SKIPPED, reason=reason)
