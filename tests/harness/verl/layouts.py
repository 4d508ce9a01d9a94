"""Layouts on four ranks: a real planner plans for verl's engine, beside verl's engine alone."""

from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state

from harness import tiny_qwen3_moe
from harness.plugin_contract import Rank, check_equal, check_planned, named, noted_outcomes, set_environment
from harness.trained import Trained
from harness.verl import engines, training

NUM_LAYERS = 4
NUM_UPDATES = 2


def prepare(folder: Path) -> None:
    """Write what all layouts share, before the ranks start."""
    tiny_qwen3_moe.save(folder / "deep model", NUM_LAYERS)


def S5_a_planner_plans_every_pass_of_two_pipeline_stages(at: Rank) -> None:
    """Each stage has two model chunks and expert parallelism."""
    _check(at, "pipeline", engines.Layout(pipeline=2, chunks=2))


def S5_a_planner_plans_every_pass_with_tensor_parallelism(at: Rank) -> None:
    """Tensor and sequence parallelism, and two EP groups with the same experts."""
    _check(at, "tensor", engines.Layout(tensor=2))


def S5_a_planner_plans_every_pass_with_context_parallelism(at: Rank) -> None:
    """Context parallelism, with the same two EP groups."""
    _check(at, "context", engines.Layout(context=2))


def _check(at: Rank, name: str, layout: engines.Layout) -> None:
    set_environment(at.planner, f"verl-{name}")
    _, alone = _run(at, layout, balanced=False)
    with noted_outcomes() as outcomes:
        engine, trained = _run(at, layout, balanced=True)
    engine.passes.close()
    parallel_state.destroy_model_parallel()
    check_planned(outcomes, 2 * NUM_UPDATES)
    check_equal(trained, alone)
    have_numbers = [None] * dist.get_world_size()
    dist.all_gather_object(have_numbers, all(trained.numbers))
    assert sum(map(bool, have_numbers)) >= 2


def _run(at: Rank, layout: engines.Layout, *, balanced: bool) -> tuple[Any, Trained]:
    of_class = training.engine_class(balanced=balanced)
    engine, trained = engines.build(of_class, at.folder / "deep model", layout=layout), Trained()
    data_rank = engine.get_data_parallel_rank()
    for index in range(NUM_UPDATES):
        data = [engines.batch(data_rank, index, num_layers=NUM_LAYERS) for _ in range(2)]
        training.step(trained, engine, *data)
    return engine, trained


SCENARIOS = named(
    S5_a_planner_plans_every_pass_of_two_pipeline_stages,
    S5_a_planner_plans_every_pass_with_tensor_parallelism,
    S5_a_planner_plans_every_pass_with_context_parallelism,
)
