"""The options that `advise` and `simulate` share, and the question that they define."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from relibra.evaluation.calibration import read_cost
from relibra.evaluation.model_presets import MODELS, model_shape
from relibra.evaluation.question import Question
from relibra.planning import Cluster
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import HARDWARE, hardware_of
from relibra.planning.plan import Level
from relibra.routing import read_trace


def ask(
    trace: Annotated[
        Path, typer.Argument(help="Routing trace (.npz), as `relibra record` writes it.", show_default=False)
    ],
    model: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(MODELS)}; or the path of a config.json.",
            show_default=False,
        ),
    ],
    hardware: Annotated[str, typer.Option(help=f"Hardware of the nodes: {', '.join(HARDWARE)}.")] = "h100",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the expert-parallel group.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of each node.")] = 8,
    micro_batches: Annotated[int, typer.Option(min=1, help="Micro-batches of a step.")] = 32,
    tokens_per_gpu: Annotated[int, typer.Option(min=1, help="Tokens of a GPU in a micro-batch.")] = 8192,
    sequence_length: Annotated[
        int, typer.Option(min=1, help="Tokens of a typical sequence, for the time of attention.")
    ] = 8192,
    dispatcher: Annotated[
        Dispatcher, typer.Option(help="What sends tokens to experts: NCCL's all-to-all, DeepEP or HybridEP.")
    ] = Dispatcher.ALLTOALL,
    job_steps: Annotated[
        int, typer.Option(min=1, help="Steps that the job trains; they share the cost of its first placement.")
    ] = 100,
    cost: Annotated[
        Path | None,
        typer.Option(help="Measured cost model (.json) from `relibra calibrate`, instead of computed times."),
    ] = None,
) -> Question:
    """Build the question from options. Its cluster has no redundant slots.

    Raises:
        InvalidInput: a preset or cost model does not exist, or the ranks do not divide the experts.
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
        dispatcher=dispatcher,
        num_steps=job_steps,
    )


Knowledge = Annotated[
    Level,
    typer.Option(
        help="What relibra knows of a step when it plans: history (the step before; nothing is replayed), step (its "
        "sequences), or micro-batches (routing is replayed)."
    ),
]
"""The option of verbs that plan."""


def asking(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `ask` before those of a verb, and pass the verb a function that builds the question."""
    shared = inspect.signature(ask).parameters
    own = list(inspect.signature(verb).parameters.values())[1:]

    @functools.wraps(verb)
    def run(**options: Any) -> None:
        asked = {name: options.pop(name) for name in shared}
        verb(functools.partial(ask, **asked), **options)

    named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*shared.values(), *own)]
    run.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    return run


def provenance(question: Question) -> str:
    """Return sentences that say where the simulated routing comes from, and which job and machines were assumed."""
    trace, length = question.trace, question.sequence_length
    if question.is_of_this_model:
        source = (
            f"Steps are filled by drawing repeatedly from the {trace.num_sequences} recorded sequences, one domain for "
            "each GPU and micro-batch."
        )
    else:
        source = (
            f"The trace is from another model ({trace.num_layers} layers x {trace.num_experts} experts): routing is "
            "drawn for this model with the statistics of the trace."
        )
    job = (
        f"Assumed: dispatch by {question.dispatcher.value} {_token_size(question)}, {question.num_micro_batches} "
        f"micro-batches of {question.tokens_per_rank} tokens per GPU, sequences of {length:.0f} tokens, "
        f"{question.num_steps:.0f} steps."
    )
    recorded = len(trace.routed_experts) / max(1, trace.num_sequences)
    if not 0.5 <= recorded / length <= 2:
        job += f" The recorded sequences have {recorded:.0f} tokens on average: set --sequence-length to the job's."
    return f"{source} {job} Times are simulated, for {question.hardware.source}."


def _token_size(question: Question) -> str:
    measured = question.hardware.measured
    if measured is not None and measured.token_size_bytes:
        return f"with the {measured.token_size_bytes:.0f} bytes of a token that --cost says"
    return "in bf16"
