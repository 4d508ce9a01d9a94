"""The options of verbs that ask about a trace, and the question they make."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from relibra.evaluation.calibration import read_cost
from relibra.evaluation.hardware import HARDWARE, hardware_of
from relibra.evaluation.model_presets import MODELS, model_shape
from relibra.evaluation.question import Question
from relibra.planning import Cluster
from relibra.routing import read_trace


def ask(
    trace: Annotated[Path, typer.Argument(help="Routing trace (.npz).", show_default=False)],
    model: Annotated[
        str, typer.Option(help=f"One of {', '.join(MODELS)}; or path of a config.json.", show_default=False)
    ],
    hardware: Annotated[str, typer.Option(help=f"Nodes of one of {', '.join(HARDWARE)}.")] = "h100",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the expert-parallel group.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of each node.")] = 8,
    micro_batches: Annotated[int, typer.Option(min=1, help="Micro-batches of a step.")] = 32,
    tokens_per_gpu: Annotated[int, typer.Option(min=1, help="Tokens of a GPU in a micro-batch.")] = 8192,
    sequence_length: Annotated[
        int, typer.Option(min=1, help="Tokens of a typical sequence, for the time of attention.")
    ] = 8192,
    cost: Annotated[
        Path | None, typer.Option(help="Measured times (JSON of `relibra calibrate`) in the place of computed ones.")
    ] = None,
) -> Question:
    """Build the question from options; GPUs have no redundant slots in it.

    Raises:
        InvalidInput: a preset or cost model that does not exist, or ranks that do not divide the experts.
        InvalidTrace: the trace cannot be read.
    """
    return Question(
        trace=read_trace(trace),
        model=model_shape(model),
        hardware=replace(hardware_of(hardware), measured=read_cost(cost) if cost else None),
        cluster=Cluster(num_nodes=nodes, gpus_per_node=gpus_per_node, redundant_slots=0),
        num_micro_batches=micro_batches,
        tokens_per_rank=tokens_per_gpu,
        sequence_length=sequence_length,
    )


def asking(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options of `ask` before its own, and call it with the function that asks."""
    shared = inspect.signature(ask).parameters
    own = list(inspect.signature(verb).parameters.values())[1:]

    @functools.wraps(verb)
    def run(**options: Any) -> None:
        asked = {name: options.pop(name) for name in shared}
        verb(functools.partial(ask, **asked), **options)

    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*shared.values(), *own)]
    run.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    return run


def provenance(question: Question) -> str:
    """Say where the simulated routing comes from."""
    if question.is_of_this_model:
        return (
            f"Steps are filled with the {question.trace.num_sequences} recorded sequences, drawn again and again, one "
            "domain to a GPU and micro-batch"
        )
    return (
        f"The trace is of another model ({question.trace.num_layers} layers x {question.trace.num_experts} experts): "
        "routing is drawn with its statistics for this one"
    )
