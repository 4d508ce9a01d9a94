"""The options of commands that ask about a trace."""

from pathlib import Path
from typing import Annotated

import typer

from relibra.evaluation.hardware import HARDWARE, hardware_of
from relibra.evaluation.model_presets import MODELS, model_preset
from relibra.evaluation.question import Question
from relibra.planning import Cluster
from relibra.routing import read_trace

TraceOption = Annotated[Path, typer.Argument(help="Routing trace (.npz).", show_default=False)]
ModelOption = Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.", show_default=False)]
HardwareOption = Annotated[str, typer.Option(help=f"Nodes of one of {', '.join(HARDWARE)}.")]
NodesOption = Annotated[int, typer.Option(min=1, help="Nodes of the expert-parallel group.")]
GpusOption = Annotated[int, typer.Option(min=1, help="GPUs of each node.")]
MicroBatchesOption = Annotated[int, typer.Option(min=1, help="Micro-batches of a step.")]
TokensOption = Annotated[int, typer.Option(min=1, help="Tokens of a GPU in a micro-batch.")]
LengthOption = Annotated[int, typer.Option(min=1, help="Tokens of a typical sequence, for the time of attention.")]


def ask(
    trace: Path,
    model: str,
    hardware: str,
    nodes: int,
    gpus_per_node: int,
    redundant_slots: int,
    micro_batches: int,
    tokens_per_gpu: int,
    sequence_length: int,
) -> Question:
    """Build the question from options.

    Raises:
        InvalidInput: a preset that does not exist, or ranks that do not divide the experts.
        InvalidTrace: the trace cannot be read.
    """
    return Question(
        trace=read_trace(trace),
        model=model_preset(model),
        hardware=hardware_of(hardware),
        cluster=Cluster(num_nodes=nodes, gpus_per_node=gpus_per_node, redundant_slots=redundant_slots),
        num_micro_batches=micro_batches,
        tokens_per_rank=tokens_per_gpu,
        sequence_length=sequence_length,
    )


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
