"""`relibra advise`: does balancing pay for this model?

In:   a routing trace file, the names of a model and of hardware.
Out:  an answer with its reasons; exit status 0 for "turn it on", 1 for any other answer.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer
from rich import box
from rich.panel import Panel
from rich.table import Table

from relibra.cli.output import AsJson, open_console, print_json, print_table, working
from relibra.cli.question import asking, provenance
from relibra.errors import InvalidInput
from relibra.evaluation.advice import Advice, Answer, Saving
from relibra.evaluation.question import Question

_COLOURS = {Answer.TURN_ON: "green", Answer.WILL_NOT_PAY: "yellow", Answer.NOT_ENOUGH_DATA: "blue"}


@asking
def advise(
    ask: Callable[[], Question],
    rollout_share: Annotated[
        float | None,
        typer.Option(help="Part of an RL step in which the GPUs do not train, 0 to 1: says what the whole step saves."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether balancing pays for a model on its recorded routing, and which settings to use."""
    from relibra.evaluation.advice import advise as run  # loads numba

    if rollout_share is not None and not 0 <= rollout_share < 1:
        raise InvalidInput.of("--rollout-share", expected="at least 0 and below 1", got=rollout_share)

    with working(on="reading") as now:
        question = ask()
        advice = run(question, lambda name: now(f"simulating {name}"))
    saving = None if rollout_share is None else Saving.of(advice.gain, rollout_share)
    if as_json:
        print_json(
            asdict(advice)
            | {"answer": advice.answer.value, "gpu_hours_saved": None if saving is None else asdict(saving)}
        )
    else:
        console = open_console()
        colour = _COLOURS[advice.answer]
        text = (
            f"[bold {colour}]{advice.answer.value[0].upper()}{advice.answer.value[1:]}.[/]\n{_capital(advice.reason)}."
        )
        console.print(Panel(text, expand=False))
        print_table(console, _table(advice))
        setting = f"Best setting: redundant_slots={advice.redundant_slots}"
        memory = f"{setting}, which takes {advice.slot_size_bytes / 1e9:.2f} GB of each GPU."
        ends = f"{advice.of_balanced_range.low:.1%} to {advice.of_balanced_range.high:.1%}"
        balance = f"Throughput is {advice.of_balanced:.1%} of perfect balance ({ends}); the rest is {advice.limit}."
        console.print(f"{memory} {balance}", highlight=False)
        if saving is None:
            console.print("These are figures of training alone: --rollout-share says what the whole step saves.")
        else:
            console.print(
                f"Of all GPU-hours of the RL step, with {rollout_share:.0%} of it outside training, relibra saves "
                f"{saving}, if the job keeps its GPUs through the step.",
                highlight=False,
            )
        console.print(f"{provenance(question)} Ranges come from what is not known of such machines.", highlight=False)
    if advice.answer is not Answer.TURN_ON:
        raise typer.Exit(1)


def _table(advice: Advice) -> Table:
    table = Table(title="throughput over plain expert parallelism", box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_row("relibra", str(advice.gain), style="bold")
    for name, gain in advice.gain_of_others.items():
        table.add_row(name, str(gain))
    table.add_section()
    for slots, gain in advice.gain_by_slots.items():
        style = "bold" if slots == advice.redundant_slots else None
        table.add_row(f"relibra, {_count(slots)}", str(gain), style=style)
    table.add_section()
    for part, gain in advice.gain_by_part.items():
        table.add_row(part, str(gain))
    return table


def _count(slots: int) -> str:
    return f"{slots} redundant slot{'' if slots == 1 else 's'}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
