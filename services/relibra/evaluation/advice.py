"""Should I turn it on? An answer with its reasons, from simulations of the user's own routing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import mean, stdev

from relibra.evaluation.question import Question
from relibra.evaluation.simulation import Outcome, simulate

MIN_GAIN = 0.02
"""Gains below this are not worth a change of one's training stack."""
MIN_SEQUENCES = 32
"""With fewer recorded sequences, steps drawn from them are more alike than real ones."""
_SLOTS = (0, 1, 2, 4)
_ENOUGH = 0.005
"""Fewer slots are better where they cost at most this much throughput."""
_SEEDS = (0, 1, 2)
_PARTS = ("plain", "reorder-only", "replicate-only", "relibra", "relibra-packed")


class Answer(Enum):
    """What to do."""

    TURN_ON = "turn it on"
    WILL_NOT_PAY = "it will not pay"
    NOT_ENOUGH_DATA = "not enough data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Throughput over plain expert parallelism, less 1: mean and standard error over seeds."""

    mean: float
    error: float

    @classmethod
    def of(cls, gains: Sequence[float]) -> "Gain":
        """From one gain a seed."""
        return cls(mean=mean(gains), error=stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("inf"))

    def __str__(self) -> str:
        return f"{self.mean:+.1%} ± {2 * self.error:.1%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The answer, and what it rests on."""

    answer: Answer
    reason: str
    gain: Gain
    """With the best number of slots."""
    redundant_slots: int
    gain_by_slots: dict[int, Gain]
    gain_by_part: dict[str, Gain]
    """Of reordering, replicating, both, and packing too, with the best number of slots."""
    of_balanced: float
    limit: str
    """What keeps it from the throughput of perfect balance."""


def advise(question: Question, on_run: Callable[[str], None] = lambda name: None) -> Advice:
    """Simulate the question with several seeds and numbers of slots; `on_run` hears of each before it starts."""
    by_slots: dict[int, Gain] = {}
    for slots in _SLOTS:
        on_run(f"{slots} redundant slots")
        by_slots[slots] = Gain.of([_gains(outcomes)["relibra"] for outcomes in _runs(question.with_slots(slots))])
    slots = fewest_slots(by_slots)
    on_run(f"its parts, with {slots} slots")
    runs = _runs(question.with_slots(slots), _PARTS)
    by_part = {part: Gain.of([_gains(outcomes)[part] for outcomes in runs]) for part in _PARTS[1:]}
    answer, reason = decide(by_slots[slots], question.trace.num_sequences)
    ours = [outcomes["relibra"] for outcomes in runs]
    return Advice(
        answer=answer,
        reason=reason,
        gain=by_slots[slots],
        redundant_slots=slots,
        gain_by_slots=by_slots,
        gain_by_part=by_part,
        of_balanced=mean(each.of_balanced for each in ours),
        limit=limit_of(ours),
    )


def decide(gain: Gain, num_sequences: int) -> tuple[Answer, str]:
    """Return the answer and why."""
    if num_sequences < MIN_SEQUENCES:
        return Answer.NOT_ENOUGH_DATA, f"record at least {MIN_SEQUENCES} sequences; there are {num_sequences}"
    if gain.mean - 2 * gain.error >= MIN_GAIN:
        return Answer.TURN_ON, f"throughput rises by {gain}, more than the {MIN_GAIN:.0%} that a change should bring"
    if gain.mean + 2 * gain.error < MIN_GAIN:
        return (
            Answer.WILL_NOT_PAY,
            f"throughput changes by {gain}, less than the {MIN_GAIN:.0%} that a change should bring",
        )
    return (
        Answer.NOT_ENOUGH_DATA,
        f"throughput changes by {gain}, and {MIN_GAIN:.0%} lies in between: record more sequences",
    )


def fewest_slots(by_slots: dict[int, Gain]) -> int:
    """Return the smallest number of slots that gains nearly as much as the best."""
    best = max(gain.mean for gain in by_slots.values())
    return min(slots for slots, gain in by_slots.items() if gain.mean >= best - _ENOUGH)


def limit_of(outcomes: Sequence[Outcome]) -> str:
    """Say what the rest to perfect balance is made of."""
    lost = 1 - mean(each.of_balanced for each in outcomes)
    if lost < _ENOUGH:
        return "nothing: this is the throughput of perfect balance"
    causes = {
        "imbalance that replicas inside nodes cannot remove": mean(
            each.step.experts_s * (1 - 1 / each.imbalance) / each.step.total_s for each in outcomes
        ),
        "experts that move between steps": mean(each.step.reorder_s / each.step.total_s for each in outcomes),
        "replica weights that attention does not hide": mean(
            each.step.transfer_s / each.step.total_s for each in outcomes
        ),
    }
    cause, share = max(causes.items(), key=lambda item: item[1])
    if share < lost / 4:
        return f"dispatch and combine, which wait for the busiest adapter ({lost:.1%} of the step lost)"
    return f"{cause} ({share:.1%} of the step)"


def _runs(question: Question, policies: Sequence[str] = ("plain", "relibra")) -> list[dict[str, Outcome]]:
    runs = []
    for seed in _SEEDS:
        before, now = question.steps(seed)
        runs.append({each.policy: each for each in simulate(now, before, question.training, policies)})
    return runs


def _gains(outcomes: dict[str, Outcome]) -> dict[str, float]:
    plain_s = outcomes["plain"].step.total_s
    return {name: plain_s / each.step.total_s - 1 for name, each in outcomes.items()}
