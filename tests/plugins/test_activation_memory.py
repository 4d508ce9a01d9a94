"""What token copies take by megatron's configuration; tests/distributed counts what autograd keeps."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from relibra.planning.memory import ActivationMemory
from relibra.plugins.activation_memory import bytes_per_copy, with_budget

COMPUTED, PASSING = 2 * (64 + 2 * 32 + 32), 2 * 3 * 64
"""Bytes of a gated, fused activation in bf16."""


def config(**changes: Any) -> Any:
    plain = {
        "fp8": None,
        "hidden_size": 64,
        "moe_ffn_hidden_size": 32,
        "expert_tensor_parallel_size": 1,
        "params_dtype": torch.bfloat16,
        "gated_linear_unit": True,
        "bias_activation_fusion": True,
        "add_bias_linear": False,
        "recompute_granularity": None,
        "recompute_method": None,
        "recompute_num_layers": None,
        "recompute_modules": None,
        "num_layers": 48,
        "pipeline_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": None,
    }
    return SimpleNamespace(**plain | changes)


@pytest.mark.parametrize(
    ("changes", "kept", "working"),
    [
        pytest.param({}, COMPUTED, PASSING, id="nothing is recomputed"),
        pytest.param({"expert_tensor_parallel_size": 2}, 2 * (64 + 48), PASSING, id="half of each expert"),
        pytest.param({"add_bias_linear": True}, COMPUTED, 2 * 4 * 64, id="biases"),
        pytest.param({"moe_ffn_hidden_size": 128}, 2 * (64 + 3 * 128), 2 * 2 * 128, id="wide experts"),
        pytest.param({"fp8": "hybrid"}, 0, 0, id="fp8"),
        pytest.param(
            {"recompute_granularity": "selective", "recompute_modules": ["moe_act"]},
            COMPUTED - 2 * 32,
            PASSING + 2 * 32,
            id="activations",
        ),
        pytest.param(
            {"recompute_granularity": "selective", "recompute_modules": ["moe"]}, 0, COMPUTED + PASSING, id="layers"
        ),
        pytest.param(
            {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}, COMPUTED, PASSING, id="other"
        ),
        pytest.param(
            {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 3},
            0,
            3 * COMPUTED + PASSING,
            id="three layers at a time",
        ),
        pytest.param(
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 12},
            0,
            COMPUTED + PASSING,
            id="all layers of a stage",
        ),
        pytest.param(
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 11},
            COMPUTED,
            PASSING,
            id="not all layers of a stage",
        ),
    ],
)
def test_M1_recomputation_moves_bytes_from_kept_to_working(changes: dict[str, Any], kept: int, working: int) -> None:
    assert bytes_per_copy(config(**changes)) == (kept, working)


@pytest.mark.parametrize(
    ("budget_gib", "free_bytes", "budget_bytes"),
    [(None, 5 << 30, 5 << 30), (None, None, 0), (2.0, 5 << 30, 2 << 30), (0.0, 5 << 30, 0)],
)
def test_the_budget_is_the_users_or_what_is_free(
    budget_gib: float | None, free_bytes: int | None, budget_bytes: int
) -> None:
    memory = ActivationMemory(kept_bytes=100, num_stages=2)
    assert with_budget(memory, budget_gib, free_bytes).budget_bytes == budget_bytes


def test_S9_a_budget_that_cannot_be_kept_is_said(caplog: pytest.LogCaptureFixture) -> None:
    not_known = ActivationMemory(num_stages=2)
    assert with_budget(not_known, 2.0, None) == not_known
    assert "relibra keeps no memory budget" in caplog.text
