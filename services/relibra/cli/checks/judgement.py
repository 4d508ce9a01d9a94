"""Findings about settings: what the agent would refuse, what works less well, and what nobody can tell."""

from collections.abc import Callable, Sequence

from relibra.agent.setting import Refusal
from relibra.cli.checks.finding import Finding, failed, warning
from relibra.cli.recipes.judge import Judgement

_SETTINGS_PAGE = "docs/integration/settings.md"
_MAX_NAMES = 40


def findings(subject: str, judgement: Judgement, where: Callable[[str], str] = lambda _: "") -> list[Finding]:
    """Return a finding for each setting that is refused or that works less well.

    Args:
        subject: the subject of the findings.
        judgement: the judgement of the settings.
        where: returns the origin of a setting, or an empty string.
    """

    def reason(refusal: Refusal, text: str) -> str:
        origin = where(refusal.setting)
        return f"{text} ({origin})" if origin else text

    return [
        *(failed(subject, reason(each, each.reason), each.fix, each.cost) for each in judgement.refusals),
        *(warning(subject, reason(each, each.what), each.fix, each.cost) for each in judgement.warnings),
    ]


def unknown_options(subject: str, names: Sequence[str]) -> list[Finding]:
    """Return the finding about options that are not known, so that nothing is said about them."""
    if not names:
        return []
    shown = ", ".join(names[:_MAX_NAMES]) + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
    reason = f"{len(names)} unknown option{'s were' if len(names) > 1 else ' was'} not judged: {shown}"
    fix = f"see {_SETTINGS_PAGE}; the agent cannot refuse what it does not know"
    return [warning(subject, reason, fix)]
