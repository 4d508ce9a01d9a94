"""The sizes that ranks measure, of which one cannot, as stages of a pipeline differ."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.thread_ranks import ThreadRanks
from relibra import agent
from relibra.errors import Unsupported
from relibra.planning import Model
from relibra.plugins import model_sizes

MODEL = Model(num_layers=1, num_experts=4, top_k=2)


def test_S1_a_rank_that_cannot_measure_leaves_no_other_waiting_and_attach_to_refuse(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ranks = ThreadRanks(3)
    monkeypatch.setattr(model_sizes, "dist", ranks)
    experts = SimpleNamespace(local_experts=torch.nn.ModuleList(torch.nn.Linear(8, 4, bias=False) for _ in range(2)))

    def find_layers(_: Any) -> list[Any]:
        if ranks.get_rank() == 1:
            raise Unsupported("grouped experts without a parameter weight{i} for every expert")
        return [(SimpleNamespace(experts=experts), None)] if ranks.get_rank() == 0 else []

    def optimizer_state(_: Any) -> Any:
        return SimpleNamespace(bytes_per_element=lambda _: 8)

    # The module itself would import megatron-core.
    megatron = SimpleNamespace(find_layers=find_layers, optimizer_state=optimizer_state)
    monkeypatch.setattr(agent, "megatron", megatron, raising=False)
    sized = ranks.run(lambda _: model_sizes.measure_sizes(MODEL, [], None))
    assert {(each.expert_weight_size_bytes, each.expert_state_size_bytes) for each in sized} == {(32 * 4, 32 * 12)}
    assert caplog.text.count("grouped experts without a parameter") == 1
