"""The figures of the hot path: what the agent adds to plain training, and who makes the host wait."""

from collections import Counter
from typing import Any
from unittest import mock

import pytest
import torch

from benchmarks.gpu.hot_path import figures, own_waits, says
from harness.host_waits import noting_waits

LAUNCH = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 0.0, "dur": 1.0}
WAITS = {
    "plain": {"megatron.core.transformer.moe.token_dispatcher:100 x": 6},
    "idle": {"relibra.agent.cells.replay:98 get_replay_topk": 4, "megatron.core:1 x": 6},
    "replicas": {"relibra.agent.cells.replay:98 get_replay_topk": 2},
}


def measured(waits: dict[str, Any] | None) -> dict[str, Any]:
    times = {"plain": [400.0, 600.0, 500.0], "idle": [560.0], "replicas": [700.0]}
    return {"host_us": times, "step_us": times, "waits": waits, "num_cells": 10}


def test_figures_are_those_of_a_cell() -> None:
    found = figures(measured(None), {"plain": [LAUNCH] * 20, "idle": [LAUNCH] * 20, "replicas": [LAUNCH] * 40})
    assert [found["jobs"][job]["host_us"] for job in ("plain", "idle", "replicas")] == [50.0, 56.0, 70.0]
    assert [found["jobs"][job]["launches"] for job in ("plain", "idle", "replicas")] == [2.0, 2.0, 4.0]


def test_without_a_device_it_says_that_launches_are_unmeasured() -> None:
    said = says(figures(measured(None), {"plain": [], "idle": [], "replicas": []}))
    assert said[0] == "plain: 50 us of host a cell, 0.0 launches, 0.0 copies, 0.0 waits"
    assert said[-1] == "launches, waits and overlap are unmeasured: the profiler saw no event of a device"


def test_waits_of_the_agent_are_named_and_those_of_megatron_are_not_the_agents() -> None:
    assert own_waits(WAITS) == {"relibra.agent.cells.replay:98 get_replay_topk": 6}
    assert own_waits({"plain": WAITS["plain"]}) == own_waits(None) == {}
    kernel = {"cat": "kernel", "name": "gemm", "ts": 0.0, "dur": 1.0}
    found = figures(measured(WAITS), {"plain": [], "idle": [], "replicas": [kernel]})
    assert says(found)[-1] == "the agent makes the host wait: 6 x relibra.agent.cells.replay:98 get_replay_topk"
    found = figures(measured({}), {"plain": [], "idle": [], "replicas": [kernel]})
    assert says(found)[-1] == "the agent never makes the host wait"


@pytest.mark.parametrize(("owner", "arguments"), [(torch.cuda.Event, ["an event"]), (torch.cuda, [])])
def test_waits_that_torch_does_not_name_are_noted_and_carried_out(owner: Any, arguments: list[str]) -> None:
    noted, device = Counter[str](), mock.Mock()
    with (
        mock.patch.object(torch.cuda, "set_sync_debug_mode"),
        mock.patch.object(owner, "synchronize", device),
        noting_waits(noted),
    ):
        owner.synchronize(*arguments)
    device.assert_called_once_with(*arguments)
    assert noted == {"elsewhere": 1}
