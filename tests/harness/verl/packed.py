"""verl's driver deals batches of two domains to four ranks on two pretended machines: by itself, and with `pack`.

Rank 0 is the driver too. The engines are verl's own.
"""

import os
import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch.distributed as dist
from megatron.core import parallel_state
from tensordict import TensorDict

from harness.plugin_contract import AWAY, Rank, check_applied, check_equal, named, noted_outcomes, set_environment
from harness.trained import Trained
from harness.verl import driver, engines, training
from harness.verl.layouts import NUM_LAYERS
from relibra.plugins.verl import dealer
from relibra.plugins.verl.trained_job import trained_job

NUM_BATCHES = 2
RANKS_OF_NODE = 2


def with_pack_sequences_start_on_the_machine_of_their_experts(at: Rank) -> None:
    """verl alone, planned as verl deals, and packed: each trains on the same mini-batches.

    Packed, every sequence keeps its mini-batch, lengths stay balanced, and updates are those of verl alone.
    """
    orders_of_verl, alone, _ = _trained(at, balanced=False, pack=False)
    set_environment(at.planner, "verl-dealt")
    orders, _, crossing = _trained(at, balanced=True, pack=False)
    assert orders == orders_of_verl
    set_environment(at.planner, "verl-packed")
    with noted_outcomes() as outcomes:
        orders, trained, crossing_packed = _trained(at, balanced=True, pack=True)
    check_applied(outcomes, 4)
    check_equal(trained, alone)
    planned, packed = (sum(_gathered(number)) for number in (crossing, crossing_packed))
    assert packed < 0.6 * planned
    for index, (of_verl, of_pack) in enumerate(zip(orders_of_verl, orders, strict=True)):
        length_S = driver.rows_of_two_domains(index, NUM_LAYERS)["attention_mask"].sum(-1).numpy()
        verls, packs = (_parts(order) for order in (of_verl, of_pack))
        assert packs != verls
        for of_step, verls_step in zip(packs, verls, strict=True):
            assert sorted(np.ravel(of_step)) == sorted(np.ravel(verls_step))
            largest, of_verls = (max(int(length_S[part].sum()) for part in ranks) for ranks in (of_step, verls_step))
            assert largest <= 1.1 * of_verls


def L1_verls_own_deal_stays_while_the_planner_is_away(at: Rank) -> None:
    """So it does for batch after batch."""
    set_environment(AWAY, "verl-unpacked")
    engine = _built(at, balanced=True)
    rows = driver.rows_of_two_domains(0, NUM_LAYERS)
    if at.number == 0:
        configs = (driver.configuration(f"+relibra.pack={pack}") for pack in (False, True))
        verls, pack = (driver.trainer(config, _group()) for config in configs)
        for _ in range(2):
            assert _order(pack, rows) == _order(verls, rows)
    engine.passes.close()
    parallel_state.destroy_model_parallel()


SCENARIOS = named(
    with_pack_sequences_start_on_the_machine_of_their_experts, L1_verls_own_deal_stays_while_the_planner_is_away
)


def _parts(order: list[int]) -> list[list[list[int]]]:
    """Return the sequences of every optimizer step and rank, as verl cuts them out of the order of a batch."""
    num_ranks = dist.get_world_size()
    parts: list[list[list[int]]] = (
        np.array(order).reshape(num_ranks, -1, driver.MINI_BATCH // num_ranks).swapaxes(0, 1).tolist()
    )
    return parts


def _built(at: Rank, *, balanced: bool) -> Any:
    with mock.patch.object(socket, "gethostname", return_value=f"node-{at.number // RANKS_OF_NODE}"):
        of_class = training.engine_class(balanced=balanced)
        return engines.build(of_class, at.folder / "deep model", layout=engines.Layout(expert=4))


def _trained(at: Rank, *, balanced: bool, pack: bool) -> tuple[list[list[int]], Trained, int]:
    """Return the orders of the batches, what the engine computed, and the token copies that left their machine."""
    with mock.patch.dict(os.environ, RELIBRA_PACK=str(pack), RELIBRA_HARDWARE="h100"):
        engine = _built(at, balanced=balanced)
    trained, crossing, orders = Trained(), 0, []
    config = driver.configuration(f"+relibra.pack={pack}")
    for index in range(NUM_BATCHES):
        rows = driver.rows_of_two_domains(index, NUM_LAYERS)
        told = [_order(driver.trainer(config, _group()), rows) if at.number == 0 else []]
        dist.broadcast_object_list(told, src=0)
        orders.append(told[0])
        for mine in _mini_batches(told[0], at.number):
            trained.numbers.append(engines.update(engine, _handed_over(rows, mine)))
            if balanced:
                home_node_LE = engine.passes.agent.home_rank_LE // RANKS_OF_NODE
                crossing += driver.crossing(rows, mine, home_node_LE, at.number // RANKS_OF_NODE)
        trained.exports.append(engines.exported(engine))
    # The parts of the loss are on other ranks.
    loss = [sum(of_ranks) for of_ranks in zip(*_gathered([of_update[0] for of_update in trained.numbers]), strict=True)]
    trained.numbers = [(of_all, norm) for of_all, (_, norm) in zip(loss, trained.numbers, strict=True)]
    if balanced:
        engine.passes.close()
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
