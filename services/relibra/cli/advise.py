"""`relibra advise`: does balancing pay for this model?

In:   a routing trace file, the names of a model and of hardware.
Out:  an answer with its reasons; exit status 0 for "turn it on", 1 for any other answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import inf
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel

from relibra.cli.output import AsJson, open_console, print_json, print_rows, working
from relibra.cli.question import Knowledge, asking, provenance
from relibra.errors import InvalidInput
from relibra.evaluation.advice import MEANINGS, Advice, Answer, name_of
from relibra.evaluation.estimate import Estimate
from relibra.evaluation.fitting_tokens import FittingTokens, fitting_tokens
from relibra.evaluation.question import Question
from relibra.evaluation.simulation import RECOMPUTED
from relibra.planning.plan import Level

_COLOURS = {
    Answer.TURN_ON: "green",
    Answer.UNLESS_BALANCED: "green",
    Answer.WILL_NOT_PAY: "yellow",
    Answer.NOT_ENOUGH_DATA: "blue",
}

_KNOWN = {
    Level.HISTORY: "relibra plans from the step before alone, as in a job that replays nothing.",
    Level.STEP: "relibra knows the sequences of the step when it plans, and not its micro-batches.",
    Level.MICRO_BATCHES: "relibra knows the routing of every micro-batch when it plans, as in a job that replays it.",
}


@asking
def advise(
    ask: Callable[[], Question],
    knowledge: Knowledge = Level.HISTORY,
    rollout_share: Annotated[
        float | None,
        typer.Option(help="Part of an RL step in which the GPUs do not train, 0 to 1: says what the whole step saves."),
    ] = None,
    memory_gib: Annotated[
        float | None,
        typer.Option(help="GiB that activations of experts may take on a GPU: says how many tokens fit, by EP size."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether balancing pays for a model on its recorded routing, and which settings to use."""
    from relibra.evaluation.advice import advise as run  # loads numba

    if rollout_share is not None and not 0 <= rollout_share < 1:
        raise InvalidInput.of("--rollout-share", expected="at least 0 and below 1", got=rollout_share)

    with working(on="reading") as now:
        question = ask()
        if memory_gib is not None and not 0 < memory_gib < inf:
            raise InvalidInput.of("--memory-gib", expected="more than 0", got=memory_gib)
        advice = run(question, knowledge, lambda name: now(f"simulating {name}"))
        fitting: list[FittingTokens] = []
        if memory_gib is not None:
            now("simulating EP sizes")
            fitting = list(fitting_tokens(question, knowledge, advice.redundant_slots, memory_gib * 2**30))
    saving = None if rollout_share is None else _saving(advice.gain, rollout_share)
    if as_json:
        said = asdict(advice) | {"gain": asdict(advice.gain), "answer": advice.answer.value}
        said["fitting_tokens"] = [asdict(tokens) for tokens in fitting]
        print_json(said | {"gpu_hours_saved": None if saving is None else asdict(saving)})
    else:
        console = open_console()
        answer = f"[bold {_COLOURS[advice.answer]}]{_capital(advice.answer.value)}.[/]"
        console.print(Panel(f"{answer}\n{_capital(advice.reason)}.", expand=False))
        _print_rows(console, advice)
        cause = f" What is missing is mainly lost to {advice.limit}." if advice.limit else ""
        whole = "These are figures of training alone: --rollout-share says what the whole step saves."
        if saving is not None:
            whole = (
                f"With {rollout_share:.0%} of an RL step outside training, relibra saves {saving:.1%} of the GPU-hours "
                "of the whole step, if the job keeps its GPUs through the step."
            )
        console.print(
            f"Best setting: redundant_slots={advice.redundant_slots}, which takes {advice.slot_size_bytes / 1e9:.2f} "
            f"GB of each GPU. Throughput is then {advice.of_balanced:.1%} of that with perfectly even routing.{cause}\n"
            f"{whole}\n"
            f"{_KNOWN[knowledge]} {provenance(question)} Ranges span two samples of the recorded "
            "sequences, and what is not known of such machines.",
            highlight=False,
        )
        if memory_gib is not None:
            _print_fitting(console, fitting, memory_gib)
    if advice.answer not in (Answer.TURN_ON, Answer.UNLESS_BALANCED):
        raise typer.Exit(1)


def _print_fitting(console: Console, fitting: Sequence[FittingTokens], memory_gib: float) -> None:
    console.print(
        f"With {memory_gib:g} GiB for activations of experts, a GPU has room for micro-batches of so many tokens, by "
        "the size of EP groups:",
        highlight=False,
    )
    rows = (
        (
            f"{tokens.ep_size}",
            f"{tokens.weights_bytes / 2**30:.1f} GiB",
            RECOMPUTED[tokens.recomputed],
            f"{tokens.plain:,}",
            f"{tokens.relibra:,}",
        )
        for tokens in fitting
    )
    print_rows(console, (">EP", ">weights and gradients", "backward", ">without relibra", ">with relibra"), rows)


def _saving(gain: Estimate, rollout_share: float) -> Estimate:
    """Return the part of the GPU-hours of whole RL steps that relibra saves.

    Args:
        gain: the gain in training.
        rollout_share: the part of a step, with plain expert parallelism, in which the GPUs do not train.
    """
    return gain.map(lambda gained: (1 - rollout_share) * gained / (1 + gained))


def _print_rows(console: Console, advice: Advice) -> None:
    gains = {name_of("relibra", slots): gain for slots, gain in advice.gain_by_slots.items()} | advice.gain_of_others
    meanings = {name: MEANINGS.get(name) or MEANINGS[name.partition(",")[0]] for name in gains}
    rows = {name: (name, f"{gain:+.1%}", meanings[name]) for name, gain in gains.items()}
    best = rows[name_of("relibra", advice.redundant_slots)]
    print_rows(console, ("!way", "!over plain expert parallelism", "what it does"), rows.values(), best=best)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
