"""What ranks did with a plan: the report of each rank, and their sum over a step.

A report is the realised counterpart of a plan's prediction.

M micro-batches of the rank's EP group, N of them, L layers, E experts.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster
from relibra.planning.load import imbalance, overload_factor
from relibra.planning.memory import NOT_KNOWN, ActivationMemory
from relibra.planning.realised_loads import RealisedLoads
from relibra.planning.step_plan import PlanId

_MAX_REASONS = 3
MAX_SAMPLED = 4
"""Micro-batches of which a report tells the load of every expert. Later steps are planned from them."""


def sample_micro_batches(num_micro_batches: int) -> NDArray[np.int64]:
    """Return the micro-batches of which a report tells the load of every expert, ascending."""
    return np.linspace(0, num_micro_batches - 1, min(num_micro_batches, MAX_SAMPLED)).astype(np.int64)


class Phase(StrEnum):
    """The two passes of an RL step over the same tokens."""

    RECOMPUTE = "recompute"
    """Old log-probabilities: forward only."""
    UPDATE = "update"
    """Forward, backward, optimizer step."""


class Cause(StrEnum):
    """Why a rank applied no plan. Programs count and decide by these values."""

    LATE = "late"
    """A rank had no plan in time."""
    STALE = "stale"
    """A rank was offered a plan of an older epoch."""
    INVALID = "invalid"
    """A rank was offered a plan that breaks an invariant."""
    DISAGREED = "disagreed"
    """Ranks held different plans, or were at different steps."""
    UNDONE = "undone"
    """The reorder failed on some rank, and was undone on all."""
    OTHER_LAUNCH = "other_launch"
    """Another launch trains the job: the attempt of a rank is over, or was never admitted."""
    UNSCHEDULED = "unscheduled"
    """Nobody scheduled the step, and ranks have no plan from history, or not all of them have the newest."""
    MEASURING = "measuring"
    """The ranks run the step plain, to measure whether planned steps are faster."""
    NOT_FASTER = "not_faster"
    """The ranks run steps plain, because planned ones were measured not to be faster (N1)."""
    OBSERVING = "observing"
    """The job only observes: it moves and copies nothing."""
    UNSPECIFIED = "unspecified"
    """The agent runs another version of relibra, and this one does not know the cause."""


INTENDED = (Cause.UNSCHEDULED, Cause.MEASURING, Cause.NOT_FASTER, Cause.OBSERVING)
"""The causes that alone are no fallback: no rank was to have a plan of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """What was measured in one phase: by one rank, or by several together."""

    reorder_sent_bytes: int = 0
    """Bytes sent in the reorder."""
    replica_sent_bytes: int = 0
    """Bytes sent for replicas: weights and gradients."""
    plan_wait_s: float = 0.0
    """How long a rank waited for the plan; the longest wait of several ranks."""
    reorder_s: float = 0.0
    """How long the reorder took, from the first expert that left until all ranks had written theirs; the longest."""
    replica_wait_s: float = 0.0
    """How long a rank's host waited for replicas and their gradients: what computation did not hide; the longest."""
    duration_s: float = 0.0
    """How long the phase took, without the wait for the plan and the reorder; the longest."""
    num_processes: int = 1
    """Processes, each on a GPU of its own: pipeline stages x parts of each expert, summed over ranks."""

    @property
    def waited_s(self) -> float:
        """All waits together: for the plan, the reorder and replicas."""
        return self.plan_wait_s + self.reorder_s + self.replica_wait_s

    @classmethod
    def total(cls, parts: "Iterable[PhaseFigures]") -> "PhaseFigures":
        """Return the figures of several ranks together: the longest of times, the sum of all other figures."""
        parts = list(parts)
        added: dict[str, Any] = {
            figure.name: (max if figure.name.endswith("_s") else sum)(getattr(part, figure.name) for part in parts)
            for figure in fields(PhaseFigures)
        }
        return PhaseFigures(**added)

    def figures(self) -> dict[str, Any]:
        """Return the fields of this class, also of an object of a derived class, by name."""
        return {figure.name: getattr(self, figure.name) for figure in fields(PhaseFigures)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionReport(PhaseFigures):
    """One rank's report of one phase of one step."""

    step: int
    phase: Phase
    ep_group: int
    ep_rank: int
    applied: PlanId | None
    """The executed plan; None where the rank kept the last plan."""
    reason: str
    """Why this plan or why none, for people. Programs read `causes`."""
    realised_load_ML: NDArray[np.int64]
    """Token copies that this rank computed."""
    expert_load_NLE: NDArray[np.unsignedinteger] = field(default_factory=lambda: np.zeros((0, 0, 0), dtype=np.uint8))
    """The same by expert, in the micro-batches of `sample_micro_batches`; the sum over ranks is their load."""
    causes: tuple[Cause, ...] = ()
    """Why no plan was applied: all causes, each once. Empty where one was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSummary(PhaseFigures):
    """What the ranks of all EP groups did in one phase of a step, in brief."""

    phase: Phase
    num_expected: int
    """Ranks of all EP groups."""
    num_reports: int
    """Ranks that have reported."""
    num_applied: int
    """Ranks that applied the plan."""
    intended: dict[Cause, int] = field(default_factory=dict)
    """The number of ranks that applied no plan for one cause of `INTENDED` alone, which is no fallback."""
    applied: PlanId | None = None
    """The plan that ranks applied. Where nobody scheduled the step, it may be the plan of an earlier step."""
    fallbacks: dict[Cause, int]
    """The number of ranks that fell back for each cause; a rank with two causes counts under both."""
    imbalance: float | None
    """The realised imbalance; None until all ranks have reported, and where their loads differ in shape."""
    imbalance_plain: float | None
    """What the imbalance would have been under the identity placement without replicas, in the micro-batches of
    `sample_micro_batches`; None where `imbalance` is."""
    overload_plain: float | None = None
    """How many times the mean load of ranks the hottest rank would then have had, in the cell where that is most."""
    overload: float | None = None
    """How many times it had that load, in the cell of all where that is most: `Peak.overload`."""
    cum_overload: float | None = None
    """`Peak.cum_overload`; None but in the update phase."""
    peak_bytes: int | None = None
    """`Peak.size_bytes`; None but in the update phase, and where the bytes of a token copy are not known."""
    num_token_copies: int | None
    """Token copies that all ranks computed; None where a report is missing."""

    @property
    def num_fallbacks(self) -> int:
        """Ranks that kept the last plan, although the step was to have one."""
        return self.num_reports - self.num_applied - sum(self.intended.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution(PhaseSummary):
    """What the ranks of all EP groups did in one phase of a step."""

    num_ep_groups: int
    missing: tuple[tuple[int, int], ...]
    """(EP group, rank) of every rank that did not report, in order."""
    reasons: tuple[str, ...]
    """The first few different reasons of the ranks that applied no plan."""
    rank_tokens: tuple[int | None, ...]
    """Token copies of every EP rank, summed over groups, micro-batches and layers; None where a report is missing."""


class ExecutionSums:
    """The sum over the reports of one step, which takes them one by one and keeps none of their loads."""

    def __init__(self, cluster: Cluster, memory: ActivationMemory = NOT_KNOWN) -> None:
        self._cluster, self._memory = cluster, memory
        self._phases: dict[Phase, _PhaseSum] = {}

    def add(self, reports: Iterable[ExecutionReport]) -> None:
        """Add reports, in any order; a second report of a rank and phase must not come."""
        for report in reports:
            if report.phase not in self._phases:
                loads = RealisedLoads(self._cluster, self._memory, is_kept=report.phase is Phase.UPDATE)
                self._phases[report.phase] = _PhaseSum(self._cluster, loads)
            self._phases[report.phase].add(report)

    def executions(self) -> list[Execution]:
        """Return one `Execution` per phase with reports, in the order in which phases happen."""
        return [self._phases[phase].execution(phase) for phase in Phase if phase in self._phases]


def executions(reports: Iterable[ExecutionReport], cluster: Cluster) -> list[Execution]:
    """Sum up the reports of one step: one `Execution` per phase with reports, in the order in which phases happen."""
    sums = ExecutionSums(cluster)
    # The last report of a rank and phase counts.
    sums.add({(report.phase, report.ep_group, report.ep_rank): report for report in reports}.values())
    return sums.executions()


@lru_cache(maxsize=16)
def _everyone(num_ep_groups: int, num_ranks: int) -> tuple[tuple[int, int], ...]:
    """Return (EP group, rank) of every rank in order; sums share them."""
    return tuple((group, rank) for group in range(num_ep_groups) for rank in range(num_ranks))


def _in_order(causes: Counter[Cause]) -> dict[Cause, int]:
    return {cause: causes[cause] for cause in Cause if cause in causes}


class _PhaseSum:
    """The sum of one phase so far."""

    def __init__(self, cluster: Cluster, loads: RealisedLoads) -> None:
        self._cluster, self._loads = cluster, loads
        self._reported: set[tuple[int, int]] = set()
        self._num_applied = 0
        self._applied: PlanId | None = None
        self._causes: Counter[Cause] = Counter()
        self._intended: Counter[Cause] = Counter()
        # Reports may come in any order, but the first different reasons are those of the first ranks.
        self._reasons: dict[str, tuple[int, int]] = {}
        self._rank_tokens = [0] * cluster.num_ranks
        self._rank_reports = [0] * cluster.num_ranks
        self._expert_load_NLE: dict[int, NDArray[np.int64]] = {}
        """For each EP group, the load of every expert in a few micro-batches."""
        self._figures = PhaseFigures(num_processes=0)

    def add(self, report: ExecutionReport) -> None:
        rank = (report.ep_group, report.ep_rank)
        self._reported.add(rank)
        if report.applied is not None:
            self._num_applied += 1
            self._applied = max(report.applied, self._applied or report.applied)  # all ranks name one plan (S1)
        else:
            is_intended = len(report.causes) == 1 and report.causes[0] in INTENDED
            (self._intended if is_intended else self._causes).update(report.causes or (Cause.UNSPECIFIED,))
            self._note_reason(report.reason, rank)
        self._rank_tokens[report.ep_rank] += int(report.realised_load_ML.sum())
        self._rank_reports[report.ep_rank] += 1
        self._add_load(report)
        self._figures = PhaseFigures.total((self._figures, report))

    def _note_reason(self, reason: str, rank: tuple[int, int]) -> None:
        self._reasons[reason] = min(rank, self._reasons.get(reason, rank))
        if len(self._reasons) > _MAX_REASONS:
            del self._reasons[max(self._reasons, key=self._reasons.__getitem__)]

    def _add_load(self, report: ExecutionReport) -> None:
        self._loads.add(report.ep_group, report.realised_load_ML)
        known_NLE = self._expert_load_NLE.setdefault(report.ep_group, np.zeros(report.expert_load_NLE.shape, np.int64))
        if known_NLE.shape == report.expert_load_NLE.shape:
            known_NLE += report.expert_load_NLE

    def execution(self, phase: Phase) -> Execution:
        cluster = self._cluster
        everyone = _everyone(cluster.num_ep_groups, cluster.num_ranks)
        missing = tuple(rank for rank in everyone if rank not in self._reported)
        is_complete = not missing and self._loads.has_one_shape
        plain_NLR = self._plain_NLR() if is_complete else None
        plain = None if plain_NLR is None else imbalance(plain_NLR)
        # Ranks that only observe do not see whose tokens come to them.
        is_observed = Cause.OBSERVING in self._intended
        loads = self._loads if is_complete and not is_observed else None
        return Execution(
            phase=phase,
            num_expected=len(everyone),
            num_reports=len(everyone) - len(missing),
            num_ep_groups=cluster.num_ep_groups,
            missing=missing,
            num_applied=self._num_applied,
            intended=_in_order(self._intended),
            applied=self._applied,
            fallbacks=_in_order(self._causes),
            reasons=tuple(sorted(self._reasons, key=self._reasons.__getitem__)),
            imbalance=plain if is_observed else loads.imbalance if loads else None,
            imbalance_plain=plain,
            overload_plain=None if plain_NLR is None else overload_factor(plain_NLR),
            overload=loads.overload if loads else None,
            cum_overload=loads.cum_overload if loads else None,
            peak_bytes=loads.peak_bytes if loads else None,
            rank_tokens=tuple(
                tokens if number == cluster.num_ep_groups and not is_observed else None
                for tokens, number in zip(self._rank_tokens, self._rank_reports, strict=True)
            ),
            num_token_copies=None if missing else sum(self._rank_tokens),
            **self._figures.figures(),
        )

    def _plain_NLR(self) -> NDArray[np.int64] | None:
        """Return the loads of ranks without relibra, in the sampled micro-batches of all EP groups; None for none."""
        loads_NLR = [
            load_NLE.reshape(*load_NLE.shape[:2], self._cluster.num_ranks, -1).sum(axis=-1)
            for load_NLE in self._expert_load_NLE.values()
            if load_NLE.any()
        ]
        return np.concatenate(loads_NLR) if loads_NLR else None
