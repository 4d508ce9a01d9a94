"""What a training that was killed and started again wrote down, compared with plain training and read for figures."""

from dataclasses import dataclass

from harness.differences import largest
from harness.restarts.run import Record, Run

Key = tuple[int, int, int, int]
"""Generation, sample, step and rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The largest relative differences over all steps that both runs finished."""

    loss: float
    grad_norm: float
    num_compared: int


def unplanned(run: Run) -> list[str]:
    """Return every step that began without its plan, with the reason."""
    return [
        f"rank {each['rank']}, generation {each['generation']}, step {each['step']}: {each['reason']}"
        for each in run.records("began")
        if each["applied"] is None
    ]


def differences(balanced: Run, plain: Run) -> Difference:
    """Compare the losses and gradient norms of two runs that died at the same points.

    When a rank is killed, another one may be about to write down the step before, or may have ended the same step.
    Every earlier step must be in both runs.
    """
    got, want = _trained(balanced), _trained(plain)
    last = {generation: kill.step - 1 for generation, kill in enumerate(balanced.kills)}
    lonely = [key for key in got.keys() ^ want.keys() if key[0] not in last or key[2] < last[key[0]]]
    assert not lonely, f"only one of the runs trained {lonely[:4]}"
    both = sorted(got.keys() & want.keys())
    return Difference(
        loss=largest(
            _relative(mine, reference)
            for key in both
            for mine, reference in zip(got[key]["losses"], want[key]["losses"], strict=True)
        ),
        grad_norm=largest(_relative(got[key]["grad_norm"], want[key]["grad_norm"]) for key in both),
        num_compared=len(both),
    )


def restart_times_s(run: Run) -> list[float]:
    """Return the time from each kill to the first planned step of the next generation."""
    killed = {each["generation"]: each["at"] for each in run.records("killed")}
    planned: dict[int, float] = {}
    for each in run.records("began"):
        if each["applied"] is not None:
            planned.setdefault(each["generation"], each["at"])
    return [planned[generation + 1] - at for generation, at in killed.items() if generation + 1 in planned]


def _trained(run: Run) -> dict[Key, Record]:
    return {(each["generation"], each["sample"], each["step"], each["rank"]): each for each in run.records("trained")}


def _relative(got: float, want: float) -> float:
    return abs(got - want) / max(abs(want), 1e-12)
