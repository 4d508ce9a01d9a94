"""Compare a plain run with a balanced one: did balancing work, and did it leave training unchanged?

R EP ranks, M micro-batches, L MoE layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from relibra.demo.batch import Weights
from relibra.demo.job import StepRecord
from relibra.planning import imbalance
from relibra.planning.plan import Prediction

NEUTRAL_WITHIN = 1e-5
"""The largest relative difference of loss and gradient norm that counts as neutral (S5, fp32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """One step of both runs, side by side."""

    step: int
    reward: float
    plain_loss: float
    balanced_loss: float
    plain_grad_norm: float
    balanced_grad_norm: float
    difference: float
    """The larger of the relative differences of loss and gradient norm; nan if one of them is."""
    weight_difference: float
    """The largest difference of a weight sent to the rollout worker, relative to the largest weight of its tensor."""
    num_resampled: int
    plain_imbalance: float
    balanced_imbalance: float
    prediction: Prediction
    """What the plan of the balanced run promised."""
    reorder_sent_bytes: int
    """Bytes that all ranks sent together, as their agents reported."""
    replica_sent_bytes: int
    """Bytes of replicas' weights and gradients that all ranks sent together, in both phases."""
    fell_back: str
    """Why a phase ran without its plan; empty if both phases had it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """The two answers about a whole run, each with its reason."""

    steps: list[StepComparison]
    neutral: bool
    neutral_reason: str
    balanced: bool
    balanced_reason: str

    @property
    def passed(self) -> bool:
        """Whether both promises were kept."""
        return self.neutral and self.balanced


def compare(
    step: int,
    plain: StepRecord,
    balanced: StepRecord,
    prediction: Mapping[str, Any],
    reports: Sequence[Mapping[str, Any]],
) -> StepComparison:
    """Put one step of both runs side by side; prediction and reports are JSON from the status service."""
    return StepComparison(
        step=step,
        reward=float(balanced.batch.rewards.mean()),
        plain_loss=plain.loss,
        balanced_loss=balanced.loss,
        plain_grad_norm=plain.grad_norm,
        balanced_grad_norm=balanced.grad_norm,
        difference=_largest([_relative(plain.loss, balanced.loss), _relative(plain.grad_norm, balanced.grad_norm)]),
        weight_difference=weight_difference(plain.weights, balanced.weights),
        num_resampled=balanced.num_resampled,
        plain_imbalance=imbalance(plain.load_MLR),
        balanced_imbalance=imbalance(balanced.load_MLR),
        prediction=Prediction(
            **{field.name: prediction[field.name] for field in fields(Prediction) if field.name != "memory"}
        ),
        reorder_sent_bytes=sum(report["reorder_sent_bytes"] for report in reports),
        replica_sent_bytes=sum(report["replica_sent_bytes"] for report in reports),
        fell_back="" if all(balanced.applied) else balanced.reason,
    )


def judge(steps: Sequence[StepComparison]) -> RunComparison:
    """Decide whether the balanced run was neutral (S5) and as balanced as its plans promised."""
    worst = max(steps, key=lambda step: np.nan_to_num(step.difference, nan=np.inf))
    balanced, balanced_reason = _judge_balance(steps)
    neutral = bool(np.isfinite(worst.difference)) and worst.difference <= NEUTRAL_WITHIN
    return RunComparison(
        steps=list(steps),
        neutral=neutral,
        neutral_reason=(
            f"loss and gradient norm of both runs differ by at most {worst.difference:.1e} (step {worst.step}; "
            f"allowed {NEUTRAL_WITHIN:.0e})"
        ),
        balanced=balanced,
        balanced_reason=balanced_reason,
    )


def _judge_balance(steps: Sequence[StepComparison]) -> tuple[bool, str]:
    for step in steps:
        if step.fell_back:
            return False, f"step {step.step} ran without its plan: {step.fell_back}"
        if abs(step.balanced_imbalance - step.prediction.imbalance_after) > 1e-6:
            return False, (
                f"step {step.step} was planned for imbalance {step.prediction.imbalance_after:.4f} "
                f"and realised {step.balanced_imbalance:.4f}"
            )
        if step.balanced_imbalance > step.plain_imbalance:
            return False, f"step {step.step} got worse: {step.plain_imbalance:.4f} to {step.balanced_imbalance:.4f}"
    before, after = (
        float(np.mean([getattr(step, field) for step in steps])) for field in ("plain_imbalance", "balanced_imbalance")
    )
    return True, f"imbalance fell from {before:.3f} to {after:.3f}, in every step exactly as planned"


def weight_difference(plain: Weights, balanced: Weights) -> float:
    """Return the largest difference between two sets of weights, each relative to its tensor's largest weight.

    Raises:
        KeyError: the two sets do not name the same parameters; the exception names the difference.
    """
    if plain.keys() != balanced.keys():
        raise KeyError(sorted(plain.keys() ^ balanced.keys()))
    return _largest(
        [np.abs(value - balanced[name]).max() / max(np.abs(value).max(), 1e-12) for name, value in plain.items()]
    )


def _largest(differences: Sequence[float]) -> float:
    return float(np.max(differences))  # nan if one of them is, which Python's max may pass over


def _relative(reference: float, value: float) -> float:
    return abs(value - reference) / max(abs(reference), 1e-12)
