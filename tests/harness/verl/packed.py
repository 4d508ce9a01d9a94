"""verl's driver deals batches of two domains to four ranks on two pretended machines: by itself, and with `pack`.

Rank 0 is the driver too. The engines are verl's own.
"""

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch.distributed as dist
from megatron.core import parallel_state
from tensordict import TensorDict
from verl.workers.engine import MegatronEngineWithLMHead

from harness.trained import Result
from harness.verl import driver, engines
from harness.verl.layouts import NUM_LAYERS
from harness.verl.plug_in import AWAY, with_plug_in
from harness.verl.trained_engine import TrainedEngine
from relibra.plugins.verl import dealer
from relibra.plugins.verl.trained_job import trained_job

NUM_BATCHES = 2
RANKS_OF_NODE = 2
TRAINERS = (driver.older, driver.newer)
"""The trainer of each batch."""


def packed(rank: int, folder: Path, planner: str) -> Result:
    """Train on the same mini-batches three times: verl alone, planned as verl deals them, and packed."""
    orders = {}
    orders["verl"], alone, _ = _trained(rank, folder, lambda: MegatronEngineWithLMHead, pack=False)
    engines.environment(planner, "verl-dealt")
    orders["planned"], _, crossing = _trained(rank, folder, with_plug_in, pack=False)
    engines.environment(planner, "verl-packed")
    orders["packed"], trained, crossing_packed = _trained(rank, folder, with_plug_in, pack=True)
    return {
        "orders": orders,
        "lengths": [
            driver.rows_of_two_domains(each, NUM_LAYERS)["attention_mask"].sum(-1).tolist() for each in range(2)
        ],
        "difference": trained.differences(alone),
        "outcomes": trained.outcomes,
        "crossing": {"planned": crossing, "packed": crossing_packed},
    }


def unpacked(rank: int, folder: Path, planner: str) -> Result:
    """What leaves verl's own deal: a planner that is away, and batches or settings that pack cannot serve."""
    engines.environment(AWAY, "verl-unpacked")
    engine = _built(rank, folder, with_plug_in)
    rows = driver.rows_of_two_domains(0, NUM_LAYERS)
    kept = []
    if rank == 0:
        for build in TRAINERS:
            verls, pack = (build(driver.configuration(f"+relibra.pack={each}"), _group()) for each in (False, True))
            kept += [_order(pack, rows) == _order(verls, rows) for _ in range(2)]
    engine.agent.detach()
    parallel_state.destroy_model_parallel()
    return {"kept": kept}


SCENARIOS = {each.__name__: each for each in (packed, unpacked)}


def _built(rank: int, folder: Path, of_class: Any) -> Any:
    with mock.patch.object(socket, "gethostname", return_value=f"node-{rank // RANKS_OF_NODE}"):
        return engines.build(of_class(), folder / "deep model", layout=engines.Layout(expert=4))


def _trained(rank: int, folder: Path, of_class: Any, *, pack: bool) -> tuple[list[list[int]], TrainedEngine, int]:
    """Return the orders of the batches, what the engine computed, and the token copies that left their machine."""
    with mock.patch.dict(os.environ, RELIBRA_PACK=str(pack)):
        engine = _built(rank, folder, of_class)
    trained, crossing, orders = TrainedEngine(), 0, []
    config = driver.configuration(f"+relibra.pack={pack}")
    for index in range(NUM_BATCHES):
        rows = driver.rows_of_two_domains(index, NUM_LAYERS)
        told = [_order(TRAINERS[index](config, _group()), rows) if rank == 0 else []]
        dist.broadcast_object_list(told, src=0)
        orders.append(told[0])
        for mine in _mini_batches(told[0], rank):
            trained.update(engine, _handed_over(rows, mine))
            if getattr(engine, "agent", None) is not None:
                home_node_LE = engine.agent.home_rank_LE // RANKS_OF_NODE
                crossing += driver.crossing(rows, mine, home_node_LE, rank // RANKS_OF_NODE)
        trained.exports.append(engines.exported(engine))
    # The parts of the loss are on other ranks.
    loss = [sum(of_ranks) for of_ranks in zip(*_gathered([of_update[0] for of_update in trained.numbers]), strict=True)]
    trained.numbers = [(of_all, norm) for of_all, (_, norm) in zip(loss, trained.numbers, strict=True)]
    if getattr(engine, "agent", None) is not None:
        engine.agent.detach()
        parallel_state.destroy_model_parallel()
    return orders, trained, crossing


def _group() -> Any:
    """Stand in for the group of workers, as far as a trainer asks it for the data-parallel ranks."""
    return SimpleNamespace(_dispatch_info={"actor": list(range(dist.get_world_size()))})


def _order(trainer: Any, rows: driver.Rows) -> list[int]:
    metrics: dict[str, Any] = {}
    with mock.patch.object(dealer, "ask_first_worker", trained_job):  # that worker is this process
        order = driver.dealt(trainer, rows, metrics)
    tokens = rows["attention_mask"].sum(-1)[order].reshape(dist.get_world_size(), -1).sum(-1)
    assert (metrics["global_seqlen/balanced_min"], metrics["global_seqlen/balanced_max"]) == (
        tokens.min(),
        tokens.max(),
    )
    return order


def _mini_batches(order: Sequence[int], rank: int) -> list[list[int]]:
    """Return the sequences of a rank by mini-batch, as verl's dispatch and `train_mini_batch` cut them."""
    num_ranks = dist.get_world_size()
    of_rank, of_part = len(order) // num_ranks, driver.MINI_BATCH // num_ranks
    mine = list(order[rank * of_rank : (rank + 1) * of_rank])
    return [mine[first : first + of_part] for first in range(0, of_rank, of_part)]


def _handed_over(rows: driver.Rows, indices: Sequence[int]) -> Any:
    content = {key: each[list(indices)] for key, each in rows.items() if key != "index"}
    return engines.handed_over(TensorDict(content, batch_size=[len(indices)]))


def _gathered(mine: Any) -> list[Any]:
    told = [mine] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return told
