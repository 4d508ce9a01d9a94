"""`relibra advise`: does balancing pay for this model?

In:   a routing trace file, the names of a model and of hardware.
Out:  an answer with its reasons; exit status 0 for "turn it on", 1 for any other answer.
"""

from collections.abc import Callable
from dataclasses import asdict

import typer
from rich import box
from rich.panel import Panel
from rich.table import Table

from relibra.cli.output import AsJson, open_console, print_json, print_table, working
from relibra.cli.question import asking, provenance
from relibra.evaluation.advice import Advice, Answer
from relibra.evaluation.question import Question

_COLOURS = {Answer.TURN_ON: "green", Answer.WILL_NOT_PAY: "yellow", Answer.NOT_ENOUGH_DATA: "blue"}


@asking
def advise(ask: Callable[[], Question], as_json: AsJson = False) -> None:
    """Say whether balancing pays for a model on its recorded routing, and which settings to use."""
    from relibra.evaluation.advice import advise as run  # loads numba

    with working(on="reading") as now:
        question = ask()
        advice = run(question, lambda name: now(f"simulating {name}"))
    if as_json:
        print_json(asdict(advice) | {"answer": advice.answer.value})
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
        balance = f"Throughput is {advice.of_balanced:.1%} of perfect balance; the rest is {advice.limit}."
        console.print(f"{memory} {balance}", highlight=False)
        console.print(f"{provenance(question)}. Times are simulated, for {question.hardware.source}.", highlight=False)
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
    for slots, number in advice.gain_by_slots.items():
        style = "bold" if slots == advice.redundant_slots else None
        table.add_row(f"relibra, {_count(slots)}", f"{number:+.1%}", style=style)
    table.add_section()
    for part, number in advice.gain_by_part.items():
        table.add_row(part, f"{number:+.1%}")
    return table


def _count(slots: int) -> str:
    return f"{slots} redundant slot{'' if slots == 1 else 's'}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
