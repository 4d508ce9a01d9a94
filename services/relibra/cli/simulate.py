"""`relibra simulate`: compare balancing policies on a recorded trace.

In:   a routing trace file, the names of a model and of hardware.
Out:  a table or JSON.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from relibra.cli.output import AsJson, open_console, print_json, print_rows, working
from relibra.cli.question import Knowledge, asking, provenance
from relibra.errors import InvalidInput
from relibra.evaluation.question import Question
from relibra.evaluation.simulation import Outcome
from relibra.planning.plan import Level


@asking
def simulate(
    ask: Callable[[], Question],
    redundant_slots: Annotated[int, typer.Option(min=0, help="Spare expert slots of each GPU, for all policies.")] = 2,
    policies: Annotated[
        str | None,
        typer.Option(help="Policies to compare, separated by commas. All by default."),
    ] = None,
    knowledge: Knowledge = Level.MICRO_BATCHES,
    seed: Annotated[int, typer.Option(help="Seed for drawing sequences.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare balancing policies on a routing trace by simulated training time."""
    from relibra.evaluation.policies import POLICIES  # loads numba
    from relibra.evaluation.simulation import simulate as run

    chosen = list(POLICIES) if policies is None else [name.strip() for name in policies.split(",")]
    if unknown := [name for name in chosen if name not in POLICIES]:
        raise InvalidInput.of(
            "--policies", expected=f"some of {', '.join(POLICIES)}", got=unknown[0] or "an empty name"
        )
    with working(on="reading") as now:
        question = ask().with_slots(redundant_slots)
        now("drawing two steps")
        before, step = question.steps(seed)
        outcomes = run(step, before, question.training, chosen, on_policy=now, level=knowledge)
    if as_json:
        said = [asdict(outcome) | {"total_s": outcome.step.total_s} for outcome in outcomes]
        print_json(
            {
                "is_of_this_model": question.is_of_this_model,
                "slots_size_bytes": _slots_size_bytes(question),
                "policies": said,
            }
        )
        return
    console = open_console()
    _print(console, outcomes, question)
    console.print(
        "Of bal.: throughput relative to perfectly even routing. Low, high: what the figure before may be, given what "
        "is not known of such machines. Hot rank: the most token copies that a rank keeps at once, over those of the "
        "mean rank, which is what memory must have room for. Waits: time for transfers of replicas, for experts that "
        "move, and for decisions.",
        highlight=False,
    )
    slots = f"{redundant_slots} redundant slot{'' if redundant_slots == 1 else 's'} per GPU"
    console.print(f"{slots}: {_slots_size_bytes(question) / 1e9:.2f} GB.", highlight=False)
    console.print(provenance(question), highlight=False)


def _slots_size_bytes(question: Question) -> int:
    return question.cluster.redundant_slots * question.model.slot_size_bytes


def _print(console: Console, outcomes: list[Outcome], question: Question) -> None:
    """Print the comparison as a table that fits 80 columns."""
    headings = (
        "step\ns",
        "over\nplain",
        "low,\nhigh",
        "of\nbal.",
        "low,\nhigh",
        "imbal-\nance",
        "hot\nrank",
        "waits\ns",
    )
    rows = {outcome.policy: _row(outcome) for outcome in outcomes}
    best = max(outcomes, key=lambda outcome: outcome.of_balanced.mid)
    cluster = question.cluster
    nodes = f"{cluster.num_nodes} x {cluster.gpus_per_node} {question.hardware.name.upper()}"
    title = f"{question.model.name} on {nodes}, simulated"
    print_rows(console, ("!policy", *(f">{heading}" for heading in headings)), rows.values(), title, rows[best.policy])


def _row(outcome: Outcome) -> tuple[str, ...]:
    step, over, of = outcome.step, outcome.over_plain, outcome.of_balanced
    return (
        outcome.policy,
        f"{step.total_s:.2f}",
        f"{over.mid:.2f}x",
        f"{over.low:.2f} {over.high:.2f}",
        f"{of.mid:.1%}",
        f"{of.low:.0%} {of.high:.0%}",
        f"{outcome.imbalance:.3f}",
        f"{outcome.peaks[''].cum_overload:.2f}",
        f"{step.transfer_s + step.decision_s + step.reorder_s + step.first_placement_s:.2f}",
    )
