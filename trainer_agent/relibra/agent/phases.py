"""The phases of the open step on this rank: what the caller sets in them, what they computed, and their reports."""

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.counts_ahead import CountsAhead
from relibra.agent.cells.given_routing import GivenRouting
from relibra.agent.cells.micro_batch import MicroBatch, RealisedLoad, running
from relibra.agent.cells.replay import check_routing
from relibra.agent.groups import Groups
from relibra.agent.plans.agreement import Spent
from relibra.agent.plans.foretold import ForetoldPhases
from relibra.agent.plans.outcome import PhaseRecord, StepOutcome
from relibra.agent.plans.plan_source import PlanSource
from relibra.agent.plans.stopwatch import Clock
from relibra.agent.setting import Refusal
from relibra.agent.transport.timed import TimedTransport
from relibra.errors import RelibraError, Unsupported
from relibra.planning import Model, Phase

log = logging.getLogger(__name__)


class Phases:
    """The phases of the open step, from the first `begin` to `close`. `Agent` documents the calls of the loop.

    Args:
        model: the registered model.
        groups: process groups of this rank.
        plans: takes the reports.
        transport: carries the replicas.
        clock: measures the phases.
        cells: returns the cells of the open step.
        foretold: the phases whose counts are gathered ahead.
        replay_obstacle: returns why the model's routers would ignore routing that the caller sets, if they would.
        device: where the model trains.
    """

    def __init__(
        self,
        *,
        model: Model,
        groups: Groups,
        plans: PlanSource,
        transport: TimedTransport,
        clock: Clock,
        cells: Callable[[], StepCells],
        foretold: ForetoldPhases,
        replay_obstacle: Callable[[], Refusal | None],
        device: torch.device,
    ) -> None:
        self._model, self._groups, self._plans, self._device = model, groups, plans, device
        self._transport, self._clock, self._cells = transport, clock, cells
        self._foretold, self._replay_obstacle = foretold, replay_obstacle
        self._records: list[PhaseRecord] = []
        self._refusal: Unsupported | None = None

    @property
    def open(self) -> PhaseRecord | None:
        """The record of the phase that is open, if any."""
        return self._records[-1] if self._records else None

    def begin(self, phase: Phase, outcome: StepOutcome) -> None:
        """Begin a phase of the step of `outcome`, after `end_phase`."""
        cells = self._cells()
        if self.open is not None:
            self.open.given_experts.clear()  # of no use any more, and large
        self._records.append(
            PhaseRecord.begin(
                phase,
                outcome,
                is_first=not self._records,
                realised=RealisedLoad(cells.num_micro_batches, self._model.num_layers, self._model.num_experts),
                counts_ahead=CountsAhead(
                    is_agreed=phase in self._foretold.agreed, was_exact=phase in self._foretold.exact
                ),
                transport=self._transport,
                clock=self._clock,
            )
        )

    def end_phase(self) -> None:
        """End the open phase, if any. Its report waits for the end of the step."""
        if self.open is not None:
            self.open.end()

    def mark(self) -> None:
        """Mark that the open phase has come this far, if one is open."""
        if self.open is not None:
            self.open.stopwatch.mark()

    def close(self) -> Spent:
        """End the step: hand over the reports, and return what it took on this rank.

        In a pipeline, this is collective over the ranks of all stages that have the same EP rank and EP group.
        """
        self.end_phase()
        for record in self._records:
            refusal = record.take_refusal()
            if refusal is not None:
                self._refusal = self._refusal or refusal
                log.error("step %d, phase %s: %s", record.outcome.step, record.phase, refusal)
            counts = record.counts_ahead
            is_exact = bool(counts.is_close(most_wrong=0.0))
            self._foretold.note(record.phase, counts.is_close(), record.outcome.step, is_exact=is_exact)
            report = record.report(
                self._groups.pipeline,
                self._groups.everyone,
                ep_group=self._groups.seat.ep_group,
                ep_rank=self._groups.seat.ep_rank,
                # Stages of the topology are pipeline stages, once for each part of the experts.
                num_processes=len(self._groups.topology.stages),
            )
            if self._groups.stage_index == 0:
                self._plans.report(report)
        times_s, nums_token_copies = zip(Spent(), *(record.spent for record in self._records), strict=True)
        self._records = []
        return Spent(sum(times_s), sum(nums_token_copies))

    def drop(self) -> None:
        """End the step without reports, because the training repeats it."""
        self._refusal = self.take_refusal()
        self._records = []

    def has(self, phase: Phase) -> bool:
        """Return whether the open step has begun `phase`."""
        return any(record.phase is phase for record in self._records)

    def take_refusal(self) -> Unsupported | None:
        """Return the error of routing that had no effect, in a step that ended or in the open one; each error once."""
        refusal, self._refusal = self._refusal, None
        for record in self._records:
            refusal = refusal or record.take_refusal()
        return refusal

    def check_may_train(self) -> None:
        """Check the phase before the optimizer steps.

        Raises:
            RelibraError: the phase is RECOMPUTE.
        """
        if self.open is not None and self.open.phase is Phase.RECOMPUTE:
            raise RelibraError(
                "the optimizer stepped in phase RECOMPUTE, whose replicas may be copies of the weights before the "
                "step: call begin_step(step, Phase.UPDATE) before the forwards that train"
            )

    def has_routing(self) -> bool:
        """Return whether the caller has set routing in the open phase."""
        return bool(self.open is not None and self.open.given_experts)

    def set_routing(self, micro_batch: int, routed_LTK: Tensor) -> None:
        """Set the routing of a micro-batch of the open phase; see `Agent.set_routing`."""
        if self.open is None:
            raise RelibraError("routing can only be set in a phase of a step: call begin_step first")
        if (obstacle := self._replay_obstacle()) is not None:
            raise Unsupported(f"the model is built with {obstacle.what}; {obstacle.fix}")
        self.open.given_experts[micro_batch] = check_routing(routed_LTK, self._model, self._device)

    def micro_batch(self, index: int, routing: Tensor | None) -> AbstractContextManager[None]:
        """Return the context for the forward of a micro-batch; see `Agent.micro_batch`."""
        if routing is not None:
            self.set_routing(index, routing)
        record = self.open
        experts = record.given_experts.get(index) if record is not None else None
        return self._mark(
            MicroBatch(
                owner=self,
                index=index,
                cells=self._cells(),
                realised=record.realised if record is not None else None,
                given=record.given if record is not None else GivenRouting(),
                counts_ahead=record.counts_ahead if record is not None else CountsAhead(),
                given_experts=experts.on(self._device) if experts is not None else None,
            )
        )

    @contextmanager
    def _mark(self, micro_batch: MicroBatch) -> Iterator[None]:
        self.mark()
        with running(micro_batch):
            yield
        self.mark()

    def forward_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a `forward_step_func` of megatron's schedules; see `Agent.forward_step`."""

        @functools.wraps(function)
        def forward_step(data_iterator: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            if self.open is None:
                raise RelibraError("a forward step ran outside a phase: call begin_step first")
            begun = self.open.begun_by_chunk
            index = begun.get(id(model), 0)
            begun[id(model)] = index + 1
            with self.micro_batch(index, None):
                return function(data_iterator, model, *args, **kwargs)

        return forward_step

    def realised_load(self, phase: Phase) -> NDArray[np.int64]:
        """Return the token copies of `phase` so far, int64 `[M, L]`; see `Agent.realised_load`."""
        for record in self._records:
            if record.phase == phase:
                return record.realised.load_ML
        raise RelibraError(f"phase {phase} is not open: call begin_step first, and realised_load before end_step")
