"""Answer whether relibra pays for a user, with reasons, from simulations of the user's own routing.

The recommendation to turn it on rests on the low end of the gain: the worst corner of what is known of the machines.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import mean, stdev

from relibra.evaluation.policies import PUBLISHED
from relibra.evaluation.question import Question
from relibra.evaluation.simulation import Outcome, simulate
from relibra.evaluation.uncertainty import Interval
from relibra.evaluation.workload import Workload

MIN_GAIN = 0.02
"""A smaller gain is not worth a change to the training stack."""
MIN_SEQUENCES = 32
"""With fewer recorded sequences, the steps drawn from them resemble each other more than real steps do."""
_SLOTS = (0, 1, 2, 4)
_ENOUGH = 0.005
"""Fewer slots are better if they cost at most this much throughput."""
_SEEDS = (0, 1, 2)
_T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""Student's t by the number of values: this many standard errors either side hold the mean in 95 % of all cases."""


class Answer(Enum):
    """The recommendation."""

    TURN_ON = "turn it on"
    WILL_NOT_PAY = "it will not pay"
    NOT_ENOUGH_DATA = "not enough data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Throughput over plain expert parallelism, minus 1."""

    mean: float
    """The mean over seeds, with the constants of the simulation in the middle of their ranges."""
    margin: float
    """Half the width of the 95 % interval that the seeds give this mean."""
    low: float
    """The gain at the worst corner of the constants, less the margin of the seeds there."""
    high: float
    """The gain at the best corner, plus the margin there."""

    @classmethod
    def of(cls, gains: Sequence[float], ranges: Sequence[Interval]) -> "Gain":
        """Return the gain from one value and one interval per seed; takes two to five of them."""
        lows, highs = [each.low for each in ranges], [each.high for each in ranges]
        return cls(
            mean=mean(gains),
            margin=_margin(gains),
            low=mean(lows) - _margin(lows),
            high=mean(highs) + _margin(highs),
        )

    @classmethod
    def of_one(cls, outcome: Outcome) -> "Gain":
        """Return the gain of one simulation, whose range is that of the constants alone."""
        ends = outcome.over_plain_range
        return cls(mean=outcome.over_plain - 1, margin=0.0, low=ends.low - 1, high=ends.high - 1)

    def __str__(self) -> str:
        return f"{self.mean:+.1%} ({self.low:+.1%} to {self.high:+.1%})"


def _margin(values: Sequence[float]) -> float:
    return _T_95[len(values)] * stdev(values) / math.sqrt(len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """The part of the GPU-hours of whole RL steps that relibra saves, with its ends."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, gain: Gain, rollout_share: float) -> "Saving":
        """Return the saving of a job that keeps its GPUs through the whole step.

        Args:
            gain: the gain in training.
            rollout_share: the part of a step, with plain expert parallelism, in which the GPUs do not train.
        """

        def saved(gained: float) -> float:
            return (1 - rollout_share) * gained / (1 + gained)

        return cls(mean=saved(gain.mean), low=saved(gain.low), high=saved(gain.high))

    def __str__(self) -> str:
        return f"{self.mean:.1%} ({self.low:.1%} to {self.high:.1%})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The answer and its evidence."""

    answer: Answer
    reason: str
    gain: Gain
    redundant_slots: int
    """The smallest number of slots that gains about as much as the best number."""
    slot_size_bytes: int
    """The memory of a GPU's slots: weights and fp32 gradients, shared by all layers."""
    gain_of_others: dict[str, Gain]
    """The gain of each published way of balancing, with the number of slots that suits it."""
    gain_by_slots: dict[int, Gain]
    """The gain for each number of slots, with the first seed only."""
    gain_by_part: dict[str, Gain]
    """The gain, with the first seed only, of reordering without slots, of replicating with the number of slots that
    suits it, and of packing sequences as well."""
    of_balanced: float
    of_balanced_range: Interval
    limit: str
    """The main reason why throughput is below that of perfect balance."""


def advise(question: Question, on_run: Callable[[str], None] = lambda name: None) -> Advice:
    """Simulate the question with several seeds and numbers of slots, and advise.

    Every seed also resamples the recorded sequences, so the margins include what another recording might change.

    Args:
        question: the trace, model and machines.
        on_run: called with a short name of each simulation before it starts.
    """
    on_run("two steps")
    first, swept = question.resampled(_SEEDS[0]).steps(_SEEDS[0]), dict[int, dict[str, Outcome]]()
    for slots in _SLOTS:
        on_run(f"{slots} redundant slots")
        swept[slots] = _run(question.with_slots(slots), first, ("relibra", *PUBLISHED, "replicate-only"))
    gains = {name: {slots: swept[slots][name].over_plain - 1 for slots in _SLOTS} for name in swept[0]}
    slots_of = {name: fewest_slots(gains[name]) for name in ("relibra", *PUBLISHED)}
    runs = [{name: swept[slots][name] for name, slots in slots_of.items()}]
    for seed in _SEEDS[1:]:
        on_run(f"other sequences, {seed} of {len(_SEEDS) - 1}")
        steps = question.resampled(seed).steps(seed)
        runs.append({name: _run(question.with_slots(slots), steps, (name,))[name] for name, slots in slots_of.items()})
    on_run("packing")
    chosen = question.with_slots(slots_of["relibra"])
    packed = _run(chosen, first, ("relibra-packed",))["relibra-packed"]
    replicating = max((swept[slots]["replicate-only"] for slots in _SLOTS), key=lambda each: each.over_plain)
    gain = {name: _gain([run[name] for run in runs]) for name in slots_of}
    ours, others = [run["relibra"] for run in runs], {name: gain[name] for name in PUBLISHED}
    answer, reason = decide(gain["relibra"], others, question.trace.num_sequences, question.other_model)
    return Advice(
        answer=answer,
        reason=reason,
        gain=gain["relibra"],
        redundant_slots=chosen.cluster.redundant_slots,
        slot_size_bytes=chosen.cluster.redundant_slots * chosen.model.slot_size_bytes,
        gain_of_others=others,
        gain_by_slots={slots: Gain.of_one(swept[slots]["relibra"]) for slots in _SLOTS},
        gain_by_part={
            "reorder-only": Gain.of_one(swept[0]["relibra"]),
            "replicate-only": Gain.of_one(replicating),
            "relibra-packed": Gain.of_one(packed),
        },
        of_balanced=mean(each.of_balanced for each in ours),
        of_balanced_range=Interval(
            min(each.of_balanced_range.low for each in ours), max(each.of_balanced_range.high for each in ours)
        ),
        limit=limit_of(ours),
    )


def decide(
    gain: Gain, others: dict[str, Gain], num_sequences: int, other_model: str | None = None
) -> tuple[Answer, str]:
    """Return the answer and why.

    Args:
        gain: what relibra gains.
        others: what the published ways gain.
        num_sequences: how many sequences were recorded.
        other_model: how the trace differs from the model, `Question.other_model`. The skew of one model says little of
            another's, so such a trace gives figures, but no recommendation.
    """
    if other_model is not None:
        return (
            Answer.NOT_ENOUGH_DATA,
            f"the trace is of another model: {other_model}. Record this model; with routing like that of the trace, "
            f"throughput would change by {gain}",
        )
    best = max(others, key=lambda name: others[name].mean)
    if num_sequences < MIN_SEQUENCES:
        return Answer.NOT_ENOUGH_DATA, f"record at least {MIN_SEQUENCES} sequences; there are {num_sequences}"
    if gain.high < MIN_GAIN:
        return (
            Answer.WILL_NOT_PAY,
            f"throughput changes by {gain}, less than the {MIN_GAIN:.0%} that makes a change worthwhile",
        )
    if gain.mean <= others[best].mean:
        return Answer.WILL_NOT_PAY, f"throughput changes by {gain}, and {best} does as well with {others[best]}"
    if gain.low >= MIN_GAIN:
        is_ahead = gain.mean - others[best].mean > max(gain.margin, others[best].margin)
        beside = "is at" if is_ahead else "may do as well with"
        return Answer.TURN_ON, f"throughput rises by {gain}; the best of the others, {best}, {beside} {others[best]}"
    is_routing = gain.mean - gain.margin < MIN_GAIN
    remedy = "record more sequences" if is_routing else "measure your machines (relibra calibrate), or try it"
    return (
        Answer.NOT_ENOUGH_DATA,
        f"throughput changes by {gain}, which may be above or below {MIN_GAIN:.0%}: {remedy}",
    )


def fewest_slots(by_slots: dict[int, float]) -> int:
    """Return the smallest number of slots that gains nearly as much as the best number."""
    best = max(by_slots.values())
    return min(slots for slots, gain in by_slots.items() if gain >= best - _ENOUGH)


def limit_of(outcomes: Sequence[Outcome]) -> str:
    """Return the main cause of what is missing to perfect balance, as a phrase."""
    lost = 1 - mean(each.of_balanced for each in outcomes)
    if lost < _ENOUGH:
        return "nothing: this is the throughput of perfect balance"

    def share(seconds: Callable[[Outcome], float]) -> float:
        return mean(seconds(each) / each.step.total_s for each in outcomes)

    causes = {
        "imbalance that replicas inside nodes do not remove": share(
            lambda each: each.step.experts_s * (1 - 1 / each.imbalance)
        ),
        "experts that move between steps": share(lambda each: each.step.reorder_s),
        "weights and gradients of replicas": share(lambda each: each.step.transfer_s),
        "the job's first placement": share(lambda each: each.step.first_placement_s),
        "host time for cells with replicas": share(lambda each: each.step.decision_s),
    }
    cause, part = max(causes.items(), key=lambda item: item[1])
    if part < lost / 4:
        return f"mainly dispatch and combine, which wait for the busiest adapter ({lost:.1%} of the step lost)"
    return f"mainly {cause} ({part:.1%} of the step)"


def _gain(outcomes: Sequence[Outcome]) -> Gain:
    ranges = [Interval(each.over_plain_range.low - 1, each.over_plain_range.high - 1) for each in outcomes]
    return Gain.of([each.over_plain - 1 for each in outcomes], ranges)


def _run(question: Question, steps: tuple[Workload, Workload], policies: Sequence[str]) -> dict[str, Outcome]:
    before, now = (replace(each, cluster=question.cluster) for each in steps)
    return {each.policy: each for each in simulate(now, before, question.training, policies)}
