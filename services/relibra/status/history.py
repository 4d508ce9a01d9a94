"""The history of an expert and of a rank over steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from relibra.planning import Phase
from relibra.planning.execution import Execution
from relibra.planning.summary import PlanTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPoint:
    """One expert of one layer in one step, summed over micro-batches."""

    step: int
    home_rank: int
    load_tokens: int
    load_ratio: float
    """Load over the mean expert load of the layer."""
    num_replicas: int

    @classmethod
    def of(cls, step: int, totals: PlanTotals, layer: int, expert: int) -> "ExpertPoint":
        """Return the point of one step."""
        load, mean = int(totals.load_LE[layer, expert]), float(totals.load_LE[layer].mean())
        return cls(
            step=step,
            home_rank=int(totals.home_rank_LE[layer, expert]),
            load_tokens=load,
            load_ratio=load / mean if mean else 0.0,
            num_replicas=int(totals.num_replicas_LE[layer, expert]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPoint:
    """One EP rank in one step, summed over micro-batches and layers."""

    step: int
    mean_tokens: float
    """Mean load of all ranks, the ideal."""
    before_tokens: int
    """Without balancing."""
    after_tokens: int
    """As planned."""
    realised_tokens: dict[Phase, int | None]
    """As reported, for each phase; None until all EP groups have reported."""

    @classmethod
    def of(cls, step: int, totals: PlanTotals, rank: int, executed: Sequence[Execution]) -> "RankPoint":
        """Return the point of one step."""
        return cls(
            step=step,
            mean_tokens=float(totals.after_LR.sum(dtype=int)) / totals.after_LR.shape[1],
            before_tokens=int(totals.before_LR[:, rank].sum()),
            after_tokens=int(totals.after_LR[:, rank].sum()),
            realised_tokens={execution.phase: execution.rank_tokens[rank] for execution in executed},
        )
