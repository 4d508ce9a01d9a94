"""What a check finds."""

from dataclasses import dataclass
from enum import StrEnum


class CheckResult(StrEnum):
    """How it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, and not as well as it could."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """It was not looked at, or is not for this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    verdict: CheckResult
    reason: str
    fix: str = ""
    """What to do; of warnings and failures."""


def ok(subject: str, reason: str) -> Finding:
    """It is well."""
    return Finding(subject=subject, verdict=CheckResult.OK, reason=reason)


def warning(subject: str, reason: str, fix: str) -> Finding:
    """It works, and could be better."""
    return Finding(subject=subject, verdict=CheckResult.WARNING, reason=reason, fix=fix)


def failed(subject: str, reason: str, fix: str) -> Finding:
    """It does not work."""
    return Finding(subject=subject, verdict=CheckResult.FAILED, reason=reason, fix=fix)


def skipped(subject: str, reason: str) -> Finding:
    """It was not looked at."""
    return Finding(subject=subject, verdict=CheckResult.SKIPPED, reason=reason)
