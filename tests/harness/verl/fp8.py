"""verl's rows of fp8: each packed sequence is filled up to 16 rows, and each micro-batch to 128.

verl's own functions fill and replay them. fp8's arithmetic alone is stood in for: products are those of fp32, inside
megatron's own grouped experts with fp8, which fill up the rows of each expert again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from harness.distributed import quantized
from harness.plugin_contract import Rank, check_planned
from harness.tiny_qwen3_moe import TOP_K
from harness.verl import engines
from harness.verl.training import CONTRACT, RECORDED
from relibra.agent import Phase, Session
from relibra.planning import ExecutionReport

_ALL_COPIES = engines.RANKS * 128 * TOP_K
"""The token copies of a micro-batch in a layer, most of them of filled rows."""
_FP8 = {"fp8": "e4m3", "fp8_recipe": "blockwise", "moe_grouped_gemm": True}


def S5_rows_that_verl_fills_for_fp8_are_split_as_they_come(at: Rank) -> None:
    """With R3, R2 and without replay; the planner does not know these rows, and reports count them."""
    with _unrounded():
        with _loads_of_all_ranks() as loads:
            CONTRACT.check_planned(at, "verl-fp8-R3", 4, num_updates=2, of_build={"transformer": _FP8})
        assert np.all(np.array([*loads[Phase.RECOMPUTE], *loads[Phase.UPDATE]]) == _ALL_COPIES)
        with _loads_of_all_ranks() as loads:
            outcomes = RECORDED.trained(at, "verl-fp8-R2", of_build={"mode": "R2", "transformer": _FP8})
        check_planned(outcomes[1::2], 2)
        assert np.all(np.array(loads[Phase.RECOMPUTE]) == _ALL_COPIES)
        # verl replays expert 0 for a filled row, once for each of its K.
        replayed = np.array(loads[Phase.UPDATE])
        assert np.all((replayed > _ALL_COPIES // TOP_K) & (replayed < _ALL_COPIES))
        CONTRACT.check_planned_from_history(
            at,
            "verl-fp8-history",
            of_build={"mode": "disabled", "transformer": _FP8},
            has_routes=False,
            is_replayed=False,
        )


@contextmanager
def _unrounded() -> Iterator[None]:
    """Have engines that are built in the body train with fp8, and round nothing."""

    class Unrounded(quantized.Quantizer):
        def rowwise(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.float()

        columnwise = rowwise

    with quantized.installed(), mock.patch.object(quantized, "Quantizer", Unrounded):
        yield


@contextmanager
def _loads_of_all_ranks() -> Iterator[dict[Phase, list[Any]]]:
    """Collective over all ranks: yield what gets, by phase, the loads `[M, L]` that reports of the body say."""
    loads: dict[Phase, list[Any]] = {phase: [] for phase in Phase}
    plain = Session.report

    def report(session: Session, of_phase: ExecutionReport) -> None:
        load_ML = torch.from_numpy(of_phase.realised_load_ML.copy())
        dist.all_reduce(load_ML)
        loads[of_phase.phase].append(load_ML.numpy())
        plain(session, of_phase)

    with mock.patch.object(Session, "report", report):
        yield loads
