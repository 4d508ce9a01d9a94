"""Layouts on four ranks: a real planner plans for verl's engine, beside verl's engine alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron.core import parallel_state
from verl.workers.engine import MegatronEngineWithLMHead

from harness import tiny_qwen3_moe
from harness.trained import Result
from harness.verl import engines
from harness.verl.plug_in import with_plug_in
from harness.verl.trained_engine import TrainedEngine

NUM_LAYERS = 4
NUM_UPDATES = 2


def prepare(folder: Path) -> None:
    """Write what all layouts share, before the ranks start."""
    tiny_qwen3_moe.save(folder / "deep model", NUM_LAYERS)


def pipeline(rank: int, folder: Path, planner: str) -> Result:
    """Two pipeline stages with two model chunks each, and expert parallelism in each stage."""
    return _beside_plain("pipeline", engines.Layout(pipeline=2, chunks=2), folder, planner)


def tensor(rank: int, folder: Path, planner: str) -> Result:
    """Tensor and sequence parallelism, and two EP groups with the same experts."""
    return _beside_plain("tensor", engines.Layout(tensor=2), folder, planner)


def context(rank: int, folder: Path, planner: str) -> Result:
    """Context parallelism, with the same two EP groups."""
    return _beside_plain("context", engines.Layout(context=2), folder, planner)


def _beside_plain(name: str, layout: engines.Layout, folder: Path, planner: str) -> Result:
    engines.environment(planner, f"verl-{name}")
    _, alone = _run(lambda: MegatronEngineWithLMHead, layout, folder)
    engine, balanced = _run(with_plug_in, layout, folder)
    engine.agent.detach()
    parallel_state.destroy_model_parallel()
    return {"difference": balanced.differences(alone), "outcomes": balanced.outcomes}


def _run(of_class: Callable[[], type[Any]], layout: engines.Layout, folder: Path) -> tuple[Any, TrainedEngine]:
    engine, trained = engines.build(of_class(), folder / "deep model", layout=layout), TrainedEngine()
    data_rank = engine.get_data_parallel_rank()
    for step in range(NUM_UPDATES):
        data = [engines.batch(data_rank, step, num_layers=NUM_LAYERS) for _ in range(2)]
        trained.step(engine, *data)
    return engine, trained


SCENARIOS: dict[str, Callable[[int, Path, str], Result]] = {each.__name__: each for each in (pipeline, tensor, context)}
