"""Measure the forward time of one expert by its tokens: the compute part of the cost model."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.gpu.timing import device_us

PRESETS = {
    "qwen3-30b-a3b": (2048, 768),
    "glm-4.5-air": (4096, 1408),
    "qwen3-235b-a22b": (4096, 1536),
    "deepseek-v3": (7168, 2048),
}
"""The hidden and intermediate size of one expert, by model."""

TOKENS = tuple(1 << i for i in range(16))
"""The numbers of tokens to measure: 1 to 32768."""

_NUM_EXPERTS = 8

Product = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Multiplies the rows of all experts with weights `[experts, out, in]`; also gets the end of each expert's rows."""


def measured(preset: str) -> dict[str, object]:
    """Time one preset at every number of tokens, with batched products if torch has no grouped ones."""
    product = best_product()
    times_us = [device_us(forward(preset, num_tokens, product)) / _NUM_EXPERTS for num_tokens in TOKENS]
    return row(preset, TOKENS, times_us) | {"grouped": product is _grouped}


def row(preset: str, expert_tokens: Sequence[int], expert_us: Sequence[float]) -> dict[str, object]:
    """Return what `relibra calibrate` reads: the forward pass of one expert beside others with equal load, in bf16."""
    hidden_size, ffn_size = PRESETS[preset]
    return {
        "preset": preset,
        "hidden_size": hidden_size,
        "weight_size_bytes": 2 * 3 * hidden_size * ffn_size,
        "expert_tokens": list(expert_tokens),
        "expert_us": list(expert_us),
    }


def best_product() -> Product:
    """Return torch's grouped product, or batched ones where it has none."""
    try:
        device_us(forward(next(iter(PRESETS)), 16, _grouped))
    except (AttributeError, RuntimeError):
        return _one_by_one
    return _grouped


def forward(preset: str, num_tokens: int, multiply: Product) -> Callable[[], Tensor]:
    """Return the forward pass of several experts of a preset, each with `num_tokens` tokens."""
    hidden_size, ffn_size = PRESETS[preset]
    options = {"device": "cuda", "dtype": torch.bfloat16}
    up = torch.randn(_NUM_EXPERTS, 2 * ffn_size, hidden_size, **options) * 0.02
    down = torch.randn(_NUM_EXPERTS, hidden_size, ffn_size, **options) * 0.02
    rows = torch.randn(_NUM_EXPERTS * num_tokens, hidden_size, **options)
    ends = torch.arange(1, _NUM_EXPERTS + 1, device="cuda", dtype=torch.int32) * num_tokens

    def run() -> Tensor:
        gate, value = multiply(rows, up, ends).chunk(2, dim=-1)
        return multiply(torch.nn.functional.silu(gate) * value, down, ends)

    return run


def _grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    multiply = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    product: Tensor = multiply(rows, weights.transpose(-2, -1), offs=ends)
    return product


def _one_by_one(rows: Tensor, weights: Tensor, _: Tensor) -> Tensor:
    return torch.bmm(rows.view(len(weights), -1, rows.shape[1]), weights.transpose(-2, -1)).flatten(0, 1)
