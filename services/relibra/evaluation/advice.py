"""Answer whether relibra pays for a user, with reasons, from simulations of the user's own routing.

The recommendation to turn it on rests on the low end of the gain: the worst corner of what is known of the machines, on
the sample of the recorded sequences that gains least. All ways balance the same loads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import mean

from relibra.evaluation.estimate import Estimate
from relibra.evaluation.policies import OWN_SLOTS, POLICIES, PUBLISHED, other_copies, reordering, replayed, with_slots
from relibra.evaluation.question import Question
from relibra.evaluation.simulation import Outcome, simulate
from relibra.planning.plan import Level

MIN_GAIN = 0.02
"""A smaller gain is not worth a change to the training stack."""
MIN_SEQUENCES = 32
"""With fewer recorded sequences, the steps drawn from them resemble each other more than real steps do."""
_SLOTS = (0, 1, 2, 4)
_HOMES_FOR = 2
"""The number of slots that relibra chooses homes for. Other numbers of them change copies, and homes hardly."""
_ENOUGH = 0.005
"""Fewer slots are better if they cost at most this much throughput."""
_SEEDS = (0, 1)
ALWAYS = "relibra, reorder=always"
REPLAYED = "relibra, routing replayed"
"""What replay would give a job without it."""


class Answer(Enum):
    """The recommendation."""

    TURN_ON = "turn it on"
    UNLESS_BALANCED = "turn it on, unless your training balances experts already"
    WILL_NOT_PAY = "it will not pay"
    NOT_ENOUGH_DATA = "not enough data"


MEANINGS = {
    "relibra, 0 slots": "Homes are planned for the step. Nothing is copied.",
    "relibra": "Homes and copies of hot experts are planned, and tokens are split over the copies that there are.",
    ALWAYS: "The same, 2 slots, where experts may move on one node, too.",
    REPLAYED: "The same for a job that replays the routing of the rollout: copies for every micro-batch.",
    "replicate-only": "The copies of relibra, 2 slots, where no expert leaves its home of plain expert parallelism.",
    "eplb-history": "EPLB as it is deployed: one placement with copies, made for the loads of the step before.",
    "eplb-async": "The same in slots of its own in every layer, so that copies need not travel in every cell.",
    "eplb-oracle": "EPLB as if it knew the loads of the step itself.",
    "ultraep": "UltraEP copies hot experts inside their node, in each layer after its router has run.",
    "moonep": "MoonEP does so until all ranks of a node are equal, with a slot for every expert of a rank.",
}
"""What the ways of balancing do, by name, with the number of slots where that matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The answer and its evidence."""

    answer: Answer
    reason: str
    redundant_slots: int
    """The smallest number of slots that gains about as much as the best number."""
    slot_size_bytes: int
    """The memory of a GPU's slots: weights and fp32 gradients, shared by all layers."""
    gain_by_slots: dict[int, Estimate]
    """Throughput over plain expert parallelism, minus 1, for each number of redundant slots."""
    gain_of_others: dict[str, Estimate]
    """The gain of other ways of balancing, the published ones with the number of slots that suits each."""
    of_balanced: Estimate
    """Throughput relative to perfectly even routing."""
    limit: str
    """The main reason why throughput is below that of perfect balance."""

    @property
    def gain(self) -> Estimate:
        """The gain with the recommended number of slots."""
        return self.gain_by_slots[self.redundant_slots]


def advise(
    question: Question, level: Level = Level.HISTORY, on_run: Callable[[str], None] = lambda name: None
) -> Advice:
    """Simulate two samples of the recorded sequences with every way and number of slots, and advise.

    Args:
        question: the trace, model and machines.
        level: what relibra knows of a step when it plans. Below level micro-batches, the advice also says what replay
            would give.
        on_run: called with a short name of each simulation before it starts.
    """
    asked = question.with_slots(_HOMES_FOR)
    ours = {0: POLICIES["reorder-only"], 1: other_copies(1), _HOMES_FOR: POLICIES["relibra"], 4: other_copies(4)}
    policies = {name_of("relibra", slots): policy for slots, policy in ours.items()}
    compared = {"replicate-only": POLICIES["replicate-only"]}
    if level < Level.MICRO_BATCHES:
        compared = {REPLAYED: replayed}
    if question.cluster.num_nodes == 1:
        compared[ALWAYS] = reordering
    by_slots = [way for way in PUBLISHED if way not in OWN_SLOTS]
    rivals = {name_of(way, slots): with_slots(POLICIES[way], slots) for way in by_slots for slots in _SLOTS}
    rivals |= {way: POLICIES[way] for way in OWN_SLOTS}
    samples: list[dict[str, Outcome]] = []
    for seed in _SEEDS:
        on_run("two steps")
        before, now = asked.resample(seed).steps(seed)
        others = rivals | policies | compared | {"plain": POLICIES["plain"]}
        outcomes = simulate(
            now, before, asked.training, (), on_policy=on_run, others=others, rivals=rivals, level=level
        )
        samples.append({outcome.policy: outcome for outcome in outcomes})
        if seed == _SEEDS[0]:  # the first sample chooses the slots of the published ways
            suiting = [name_of(way, fewest_slots(_gains(samples, way))) for way in by_slots]
            rivals = {name: rivals[name] for name in (*suiting, *OWN_SLOTS)}
    gain_by_slots = _gains(samples, "relibra")
    slots = fewest_slots(gain_by_slots)
    chosen = [sample[name_of("relibra", slots)] for sample in samples]
    margins = {name: _gain([outcome.over_rivals[name] for outcome in chosen]) for name in rivals}
    answer, reason = decide(gain_by_slots[slots], margins, question.trace.num_sequences, question.other_model)
    return Advice(
        answer=answer,
        reason=reason,
        redundant_slots=slots,
        slot_size_bytes=slots * question.model.slot_size_bytes,
        gain_by_slots=gain_by_slots,
        gain_of_others={name: _gain([sample[name].over_plain for sample in samples]) for name in (*rivals, *compared)},
        of_balanced=Estimate.over([outcome.of_balanced for outcome in chosen]),
        limit=limit_of(chosen),
    )


def name_of(way: str, slots: int) -> str:
    """Return the name of a way of balancing with a number of redundant slots."""
    return f"{way}, {slots} slot{'' if slots == 1 else 's'}"


def _gains(samples: Sequence[Mapping[str, Outcome]], way: str) -> dict[int, Estimate]:
    names = {slots: name_of(way, slots) for slots in _SLOTS}
    return {slots: _gain([sample[name].over_plain for sample in samples]) for slots, name in names.items()}


def _gain(ratios: Sequence[Estimate]) -> Estimate:
    return Estimate.over(ratios).map(lambda ratio: ratio - 1)


def decide(
    gain: Estimate, margins: dict[str, Estimate], num_sequences: int, other_model: str | None = None
) -> tuple[Answer, str]:
    """Return the answer and why.

    Args:
        gain: what relibra gains over plain expert parallelism.
        margins: what relibra gains over each published way on the same loads.
        num_sequences: how many sequences were recorded.
        other_model: how the trace differs from the model, `Question.other_model`. The skew of one model says little of
            another's, so such a trace gives figures, but no recommendation.
    """
    if other_model is not None:
        return (
            Answer.NOT_ENOUGH_DATA,
            f"the trace is of another model: {other_model}. Record this model; with routing like that of the trace, "
            f"throughput would change by {gain:+.1%}",
        )
    if num_sequences < MIN_SEQUENCES:
        return Answer.NOT_ENOUGH_DATA, f"record at least {MIN_SEQUENCES} sequences; there are {num_sequences}"
    if gain.high < MIN_GAIN:
        return (
            Answer.WILL_NOT_PAY,
            f"throughput changes by {gain:+.1%}, less than the {MIN_GAIN:.0%} that makes a change worthwhile",
        )
    best = min(margins, key=lambda name: margins[name].mid)
    beside = f"{margins[best]:+.1%} over {best}, the best of the other ways on the same loads"
    if margins[best].mid <= 0:
        return Answer.WILL_NOT_PAY, f"throughput changes by {gain:+.1%}, but by {beside}"
    if gain.low < MIN_GAIN:
        return (
            Answer.NOT_ENOUGH_DATA,
            f"throughput changes by {gain:+.1%}, which may be above or below {MIN_GAIN:.0%}: record more sequences, "
            "measure your machines (relibra calibrate), or try it",
        )
    if margins[best].mid < MIN_GAIN:
        return Answer.UNLESS_BALANCED, f"throughput rises by {gain:+.1%} over plain expert parallelism, but by {beside}"
    return Answer.TURN_ON, f"throughput rises by {gain:+.1%} over plain expert parallelism, and by {beside}"


def fewest_slots(by_slots: dict[int, Estimate]) -> int:
    """Return the smallest number of slots that gains nearly as much as the best number."""
    best = max(gain.mid for gain in by_slots.values())
    return min(slots for slots, gain in by_slots.items() if gain.mid >= best - _ENOUGH)


def limit_of(outcomes: Sequence[Outcome]) -> str:
    """Return the main cause of what is missing to perfect balance, as a phrase; empty if next to nothing is missing."""
    lost = 1 - mean(outcome.of_balanced.mid for outcome in outcomes)
    if lost < _ENOUGH:
        return ""

    def share(seconds: Callable[[Outcome], float]) -> float:
        return mean(seconds(outcome) / outcome.step.total_s for outcome in outcomes)

    causes = {
        "imbalance that replicas inside nodes do not remove": share(
            lambda outcome: outcome.step.experts_s * (1 - 1 / outcome.imbalance)
        ),
        "experts that move between steps": share(lambda outcome: outcome.step.reorder_s),
        "weights and gradients of replicas": share(lambda outcome: outcome.step.transfer_s),
        "the job's first placement": share(lambda outcome: outcome.step.first_placement_s),
        "mapping tokens to replicas, and hosts that fall behind": share(lambda outcome: outcome.step.decision_s),
    }
    cause, part = max(causes.items(), key=lambda item: item[1])
    if part < lost / 4:
        return "dispatch and combine, which wait for the busiest adapter"
    return cause
