"""What a framework computes over several steps, and how it differs from what it computes with a plug-in."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.differences import largest

Result = dict[str, Any]
NUM_EXPORTED = 69
"""The tensors of the tiny Qwen3-MoE as Hugging Face names them."""
ROUNDING = 1e-5
"""Replicas and reorders change the order of additions and nothing else."""

ADAM_EPS = 1e-4
"""With a gradient close to 0, Adam's own 1e-8 would make a full step in the direction of its rounding error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """The largest relative difference of numbers and the largest one of outputs, None where a rank computes none."""

    numbers: float | None
    outputs: float | None
    exports: list[list[str]]
    """The names of the weights that differ by more than rounding, for each export."""


class Trained:
    """Losses and norms of gradients, outputs of passes without gradients, and weights that left after each update."""

    def __init__(self) -> None:
        self.numbers: list[tuple[float, ...]] = []
        """The loss and the norm of the gradients of every update."""
        self.outputs: list[torch.Tensor] = []
        """Log-probabilities or values."""
        self.exports: list[dict[str, torch.Tensor]] = []

    def differences(self, other: "Trained") -> Differences:
        """Return how this differs from what another engine computed."""
        numbers = [
            abs(a - b) / abs(b)
            for of_a, of_b in zip(self.numbers, other.numbers, strict=True)
            for a, b in zip(of_a, of_b, strict=True)
        ]
        outputs = [float((a - b).abs().max()) for a, b in zip(self.outputs, other.outputs, strict=True)]
        return Differences(
            numbers=largest(numbers) if numbers else None,
            outputs=largest(outputs) if outputs else None,
            exports=[differing(a, b) for a, b in zip(self.exports, other.exports, strict=True)],
        )


def differing(
    got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], *, rtol: float = 1e-4, atol: float = 1e-6
) -> list[str]:
    """Return the names of the tensors that differ by more than rounding."""
    assert got.keys() == expected.keys(), sorted(got.keys() ^ expected.keys())
    return [name for name, tensor in expected.items() if not torch.allclose(got[name], tensor, rtol=rtol, atol=atol)]


def unequal(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of the tensors that are not the same bit by bit."""
    return differing(got, expected, rtol=0, atol=0)


def relative(got: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest relative difference."""
    return largest(abs(a - b) / abs(b) for a, b in zip(got, expected, strict=True))


def note_outcomes(agent: Any) -> list[Result]:
    """Return a list that gets what becomes of the plan of every pass from now on."""
    wait_for_plans()
    noted: list[Result] = []
    begin = agent.begin_step

    def begin_step(*args: Any, **kwargs: Any) -> Any:
        outcome = begin(*args, **kwargs)
        noted.append(result_of(outcome))
        return outcome

    agent.begin_step = begin_step
    return noted


def attachment(passes: Any) -> Result:
    """Return what the plug-in has found in a process that Ray has started."""
    planned, cluster = passes.planned, passes.planned.cluster
    return {
        "job": planned.settings.job,
        "cluster": [cluster.num_nodes, cluster.gpus_per_node, cluster.num_ep_groups],
        "ranks": [int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")],
    }


def wait_for_plans() -> None:
    """Let passes wait for plans as long as a user may allow: they are so short that none could save as much."""
    from relibra.plugins import plan_wait

    plan_wait.most_wait_s = lambda limit_s, *_: limit_s


def result_of(outcome: Any) -> Result:
    """Return what became of the plan of a pass."""
    return {
        "is_applied": outcome.applied is not None,
        "is_kept": outcome.kept is not None,
        "num_moved": outcome.num_moved_experts,
        "num_replicas": outcome.num_replicas,
        "reason": outcome.reason,
    }
