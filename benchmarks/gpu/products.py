"""Time the experts of a rank with planned, plain and equal loads, forward and backward.

    python -m benchmarks.gpu.products --device cuda --figures FILE

`loads` made the loads. Equal loads are what a perfect balancer would give the rank. The times say how much of the
saved tokens becomes saved time: grouped products of few tokens are slower per token, and a plan adds slots.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from benchmarks.gpu import loads
from benchmarks.gpu.experts import PRESETS
from benchmarks.gpu.timing import stream_us
from relibra.atomic_file import write_atomically

_SMALLER = 64
"""Sizes and loads on a CPU are this many times smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The experts of one rank under one kind of load, bf16, SwiGLU."""

    preset: str
    load: str
    num_experts: int
    num_tokens: int
    is_grouped: bool
    """Whether torch's grouped product ran all experts, or one product after another."""
    forward_us: float
    forward_backward_us: float


def measure(preset: str, load: str, tokens: Sequence[int], device: str) -> Times:
    """Time one preset under one load."""
    hidden_size, ffn_size = PRESETS[preset]
    if device == "cpu":
        hidden_size, ffn_size = hidden_size // _SMALLER, ffn_size // _SMALLER
        tokens = [num // _SMALLER for num in tokens]
    experts = _Experts(hidden_size, ffn_size, tokens, device)
    timed = stream_us if device == "cuda" else _host_us

    def forward_backward() -> None:
        for each in (experts.up, experts.down, experts.rows):
            each.grad = None
        experts.forward().backward(experts.gradient)

    with torch.no_grad():
        forward_us = timed(experts.forward)
    return Times(
        preset=preset,
        load=load,
        num_experts=len(tokens),
        num_tokens=sum(tokens),
        is_grouped=experts.is_grouped,
        forward_us=forward_us,
        forward_backward_us=timed(forward_backward),
    )


class _Experts:
    """The experts of a rank, with the rows of their tokens one expert after the other."""

    def __init__(self, hidden_size: int, ffn_size: int, tokens: Sequence[int], device: str) -> None:
        self._tokens = list(tokens)
        self.up = self._random(device, len(tokens), hidden_size, 2 * ffn_size)
        self.down = self._random(device, len(tokens), ffn_size, hidden_size)
        self.rows = self._random(device, sum(tokens), hidden_size)
        self.gradient = torch.randn_like(self.rows.detach())
        self._ends = torch.tensor(tokens, device=device).cumsum(0).int()
        self.is_grouped = device == "cuda" and _can_group(self)

    def forward(self, *, grouped: bool | None = None) -> Tensor:
        product = self._grouped if (self.is_grouped if grouped is None else grouped) else self._one_by_one
        gate, value = product(self.rows, self.up).chunk(2, dim=-1)
        return product(torch.nn.functional.silu(gate) * value, self.down)

    def _grouped(self, rows: Tensor, weights: Tensor) -> Tensor:
        multiply = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        result: Tensor = multiply(rows, weights, offs=self._ends)
        return result

    def _one_by_one(self, rows: Tensor, weights: Tensor) -> Tensor:
        parts = zip(rows.split(self._tokens), weights, strict=True)
        return torch.cat([part @ weight for part, weight in parts])

    @staticmethod
    def _random(device: str, *shape: int) -> Tensor:
        return (torch.randn(shape, device=device, dtype=torch.bfloat16) * 0.05).requires_grad_()


def _can_group(experts: _Experts) -> bool:
    try:
        experts.forward(grouped=True).backward(experts.gradient)
    except (AttributeError, RuntimeError) as error:
        print(f"torch has no grouped product for this, so experts run one after another: {error}", flush=True)
        return False
    return True


def _host_us(run: Callable[[], object]) -> float:
    times_s = []
    for _ in range(4):
        began_s = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - began_s)
    return median(times_s[1:]) * 1e6


def says(rows: Sequence[Times]) -> list[str]:
    """Return a line for each row: its times, and how they compare to those of equal loads."""
    equal = {each.preset: each for each in rows if each.load == "equal"}
    lines = []
    for each in rows:
        ratio = each.forward_backward_us / equal[each.preset].forward_backward_us
        kind = "grouped" if each.is_grouped else "one by one"
        lines.append(
            f"{each.preset:14} {each.load:8} {each.num_tokens:7} tokens in {each.num_experts} experts ({kind}): "
            f"{each.forward_us:.0f} us forward, {each.forward_backward_us:.0f} us with backward, "
            f"{ratio:.2f}x equal loads"
        )
    return lines


def main() -> int:
    """Time everything; write the figures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--way", help="taken from all stages; one process needs none")
    parser.add_argument("--figures", type=Path, required=True, help="where to write the figures, as JSON")
    arguments = parser.parse_args()
    rows = [
        measure(preset, load, tokens, arguments.device)
        for preset, of_preset in loads.read().items()
        for load, tokens in of_preset.items()
    ]
    said = says(rows)
    print(*said, sep="\n")
    found = {"device": arguments.device, "says": said, "rows": [asdict(each) for each in rows]}
    write_atomically(arguments.figures, json.dumps(found).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
