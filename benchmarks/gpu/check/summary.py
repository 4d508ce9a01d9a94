"""What the check found, for programs as JSON and for people as a text that fits where little output comes back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.gpu.check.decisions import Verdict

MAX_CHARACTERS = 10_000
_MAX_LINES_OF_A_STAGE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one stage ended."""

    name: str
    teaches: str
    verdict: Verdict
    reason: str
    """Why it failed or did not run; the numbers of tests if it passed."""
    took_s: float = 0.0
    limit_s: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What the stage measured; `says` has it in lines for people."""
    log_end: str = ""
    """The end of the log, of a stage that failed."""


def as_json(device: str | None, versions: Mapping[str, str], results: Sequence[Result]) -> dict[str, Any]:
    """Return the document with everything that was found."""
    return {"device": device, "versions": dict(versions), "stages": [asdict(each) for each in results]}


def text(
    device: str | None,
    versions: Mapping[str, str],
    results: Sequence[Result],
    pending: Sequence[str] = (),
    max_characters: int = MAX_CHARACTERS,
) -> str:
    """Return the summary: a line for each stage, the figures in lines, and the ends of the logs of failed stages.

    Args:
        device: the name of the CUDA device, or None.
        versions: the versions on this machine, by name.
        results: the stages so far.
        pending: the names of stages that have not run yet.
        max_characters: the length of the text, at most. Failed stages share the room that the lines leave.
    """
    about = ", ".join(f"{name} {found}" for name, found in versions.items())
    lines = [f"{device or 'no CUDA device'}; {about}", ""]
    lines += [f"{each.name:10} {each.verdict:8} {each.took_s:5.0f} s  {each.reason}".rstrip() for each in results]
    lines += [f"{name:10} pending" for name in pending]
    for each in results:
        said = list(each.figures.get("says", ()))
        if said:
            lines += ["", f"{each.name}: {each.teaches}", *said[:_MAX_LINES_OF_A_STAGE]]
        if len(said) > _MAX_LINES_OF_A_STAGE:
            lines.append(f"and {len(said) - _MAX_LINES_OF_A_STAGE} lines more in summary.json")
    lines += ["", counted(results)]
    whole = "\n".join(lines)
    failed = [each for each in results if each.log_end]
    room = (max_characters - len(whole)) // max(1, len(failed)) - 60
    for each in failed if room > 0 else []:
        whole += f"\n\n===== end of the log of {each.name}\n{each.log_end[-room:]}"
    return whole[:max_characters]


def counted(results: Sequence[Result]) -> str:
    """Return how many stages ended in each way, with the names of those that did not pass."""
    parts = []
    for verdict in Verdict:
        names = [each.name for each in results if each.verdict is verdict]
        named = f" ({', '.join(names)})" if names and verdict is not Verdict.PASSED else ""
        parts.append(f"{len(names)} {verdict}{named}")
    return "stages: " + ", ".join(parts)
