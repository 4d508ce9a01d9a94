"""verl's rows of fp8: each packed sequence is filled up to 16 rows, and each micro-batch to 128.

verl's own functions fill and replay them. fp8's arithmetic alone is stood in for: products are those of fp32, inside
megatron's own grouped experts with fp8, which fill up the rows of each expert again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from harness.distributed import quantized
from harness.plugin_contract import Rank, check_planned
from harness.tiny_qwen3_moe import TOP_K
from harness.verl import engines
from harness.verl.training import CONTRACT, RECORDED
from relibra.agent import Session
from relibra.planning import ExecutionReport

_NUM_ROWS = 128
"""The rows of every micro-batch, most of them fill."""
_FP8 = {"fp8": "e4m3", "fp8_recipe": "blockwise", "moe_grouped_gemm": True}


def S5_rows_that_verl_fills_for_fp8_are_split_as_they_come(at: Rank) -> None:
    """With R3, R2 and without replay; the planner does not know these rows, and reports count them."""
    with _unrounded():
        with _reports() as reports:
            CONTRACT.check_planned(at, "verl-fp8-R3", 4, num_updates=2, of_build={"transformer": _FP8})
        _check_fill(reports, TOP_K)
        outcomes = RECORDED.trained(at, "verl-fp8-R2", of_build={"mode": "R2", "transformer": _FP8})
        check_planned(outcomes[1::2], 2)
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
def _reports() -> Iterator[list[ExecutionReport]]:
    reports: list[ExecutionReport] = []
    plain = Session.report

    def report(session: Session, of_step: ExecutionReport) -> None:
        reports.append(of_step)
        plain(session, of_step)

    with mock.patch.object(Session, "report", report):
        yield reports


def _check_fill(reports: list[ExecutionReport], copies: int) -> None:
    """Check that reports of both ranks together count the copies of all rows."""
    assert reports
    for report in reports:
        load_ML = torch.from_numpy(report.realised_load_ML.copy())
        dist.all_reduce(load_ML)
        assert np.all(load_ML.numpy() == engines.RANKS * _NUM_ROWS * copies), load_ML
