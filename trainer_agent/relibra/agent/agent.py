"""One object per training process, driven by the training loop: plans in, balanced steps and reports out."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from relibra.agent import agreement
from relibra.agent.agreement import Lack, Offer
from relibra.agent.cells import StepCells
from relibra.agent.config import AgentConfig
from relibra.agent.experts import Experts
from relibra.agent.groups import Groups
from relibra.agent.layer import LayerExecution
from relibra.agent.logical_names import logical_named_parameters
from relibra.agent.micro_batch import MicroBatch, RealisedLoad, current, running
from relibra.agent.optimizer_state import OptimizerState
from relibra.agent.outcome import PhaseRecord, StepOutcome
from relibra.agent.placement import Placement
from relibra.agent.plan_source import PlanSource
from relibra.agent.reorder import reorder
from relibra.agent.replicate import NodeExchange
from relibra.errors import InvalidPlan, RelibraError
from relibra.planning import Phase, RankPlan, check_rank_plan

log = logging.getLogger(__name__)


class Agent:
    """Executes the plans of one rank. Made by `attach`; not for several threads at once."""

    def __init__(
        self,
        *,
        config: AgentConfig,
        models: Sequence[nn.Module],
        experts: Sequence[Experts],
        optimizer_state: OptimizerState,
        groups: Groups,
        plans: PlanSource,
    ) -> None:
        self._config, self._groups, self._plans = config, groups, plans
        self._models, self._experts, self._optimizer_state = models, experts, optimizer_state
        self._device = experts[0].parameters[0][0].device
        self._exchange = NodeExchange(groups.node)
        self._placement = Placement.identity(config.model, config.cluster)
        self._cells = self._cells_of(None)
        self._accepted_epoch = 0
        self._outcome: StepOutcome | None = None
        self._records: list[PhaseRecord] = []
        self._unhook: list[Callable[[], None]] = []
        self.layers = [
            LayerExecution(index=index, experts=each, exchange=self._exchange, active=self._active)
            for index, each in enumerate(experts)
        ]

    @property
    def home_rank_LE(self) -> NDArray[np.int32]:
        """A copy of the current placement."""
        return self._placement.home_rank_LE.copy()

    @property
    def ep_rank(self) -> int:
        """This rank within its EP group."""
        return self._groups.ep_rank

    @property
    def ep_group(self) -> int:
        """Index of this rank's EP group."""
        return self._groups.ep_group

    def hook(self, unhook: list[Callable[[], None]]) -> None:
        """Remember how `detach` takes the agent out of the model."""
        self._unhook = unhook

    def prefetch(self, step: int) -> None:
        """Start fetching the plan of `step`; returns at once."""
        self._plans.prefetch(step)

    def begin_step(self, step: int, phase: Phase) -> StepOutcome:
        """Collective over all ranks: begin a phase of `step`, between an optimizer step and the next forward.

        The first phase of a step waits for the plan (at most `plan_timeout_s`), agrees on it with all ranks, and moves
        experts to their new homes. A later phase of the same step executes what was agreed. Where the ranks do not all
        hold the same plan, the step keeps the placement it has and makes no replicas.
        """
        is_first = self._outcome is None or self._outcome.step != step
        if is_first:
            self.end_step()
            self._outcome = self._open_step(step)
        assert self._outcome is not None
        self._close_phase()
        num_micro_batches = self._cells.num_micro_batches
        self._records.append(
            PhaseRecord(
                phase=phase,
                outcome=self._outcome,
                is_first=is_first,
                realised=RealisedLoad(num_micro_batches, self._config.model.num_layers),
                sent_bytes_before=self._exchange.sent_bytes,
            )
        )
        return self._outcome

    def micro_batch(self, index: int) -> AbstractContextManager[None]:
        """Context of the forward of micro-batch `index` of the phase; its backward may run inside or later."""
        realised = self._records[-1].realised if self._records else None
        return running(MicroBatch(agent=self, index=index, cells=self._cells, realised=realised))

    def realised_load(self, phase: Phase) -> NDArray[np.int64]:
        """Return the token copies this rank computed so far in `phase` of the open step, int64 `[M, L]`.

        Raises:
            RelibraError: the phase was not begun.
        """
        for record in self._records:
            if record.phase == phase:
                return record.realised.load_ML
        raise RelibraError(f"phase {phase} of no step is open: call begin_step first, and ask before end_step")

    def end_step(self) -> None:
        """End the open step, after `optimizer.step()`: replicas are gone, reports on their way; never blocks."""
        self._close_phase()
        for record in self._records:
            self._plans.report(record.report(ep_group=self._groups.ep_group, ep_rank=self._groups.ep_rank))
        self._records = []
        if self._outcome is not None:
            self._outcome = None
            self._cells = self._cells_of(None)

    def logical_named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's parameters, experts under their global logical id.

        Merged over the ranks of an EP group, this is the state of the same model with one rank, whatever the placement.
        """
        return logical_named_parameters(
            self._models, self._experts, self._placement.expert_of_slot(self._groups.ep_rank)
        )

    def detach(self) -> None:
        """Collective over all ranks: bring every expert back to where it was, and leave the plain model behind."""
        self.end_step()
        self._move_to(Placement.identity(self._config.model, self._config.cluster))
        for unhook in self._unhook:
            unhook()
        self._unhook = []
        self._plans.close()
        self._groups.close()

    def _active(self) -> tuple[StepCells, MicroBatch | None]:
        return self._cells, current(self)

    def _open_step(self, step: int) -> StepOutcome:
        began = time.monotonic()
        plan, why = self._plans.wait(step, self._config.plan_timeout_s)
        plan_wait_s = time.monotonic() - began
        offer, why = self._offer(step, plan, why)
        plan_id, reason = agreement.decide(agreement.exchange(offer, self._groups.everyone, self._device))
        if plan is None or plan_id is None:
            own = f" (this rank: {why})" if offer.plan_id is None else ""
            log.warning("step %d keeps its placement, without replicas: %s%s", step, reason, own)
            return StepOutcome(step=step, applied=None, reason=reason + own, plan_wait_s=plan_wait_s)
        self._accepted_epoch = plan_id.epoch
        num_moved_experts = int((plan.home_rank_LE != self._placement.home_rank_LE).sum())
        sent_bytes = self._move_to(self._placement.rehomed(plan.home_rank_LE))
        self._cells = self._cells_of(plan)
        return StepOutcome(
            step=step,
            applied=plan_id,
            reason=reason,
            num_moved_experts=num_moved_experts,
            num_replicas=self._cells.num_replicas,
            reorder_sent_bytes=sent_bytes,
            plan_wait_s=plan_wait_s,
        )

    def _offer(self, step: int, plan: RankPlan | None, why: str) -> tuple[Offer, str]:
        """What this rank brings to the agreement, and why not the plan it was given."""
        if plan is None:
            return Offer(step=step, plan_id=None, lack=Lack.LATE), why
        if plan.id.epoch < self._accepted_epoch:
            why = f"plan {plan.id} is of an older epoch than {self._accepted_epoch:016x}, which was applied before"
            return Offer(step=step, plan_id=None, lack=Lack.STALE), why
        try:
            if plan.step != step:
                raise InvalidPlan.of("plan.step", expected=str(step), got=plan.step)
            check_rank_plan(plan, self._config.model, self._config.cluster)
        except InvalidPlan as error:
            return Offer(step=step, plan_id=None, lack=Lack.INVALID), str(error)
        return Offer(step=step, plan_id=plan.id, digest=plan.digest), why

    def _move_to(self, target: Placement) -> int:
        moves = self._placement.moves_to(target)
        sent_bytes = reorder(moves, self._expert_tensors, group=self._groups.ep, device=self._device)
        self._placement = target
        self._cells = self._cells_of(None)
        return sent_bytes

    def _expert_tensors(self, layer: int, slot: int) -> list[Tensor]:
        """Everything that is one expert: its weights, and what the optimizer keeps about them."""
        parameters = self._experts[layer].parameters[slot]
        return [*parameters, *(tensor for each in parameters for tensor in self._optimizer_state.tensors_of(each))]

    def _cells_of(self, plan: RankPlan | None) -> StepCells:
        return StepCells(
            self._placement,
            self._config.cluster,
            ep_group=self._groups.ep_group,
            ep_rank=self._groups.ep_rank,
            plan=plan,
            device=self._device,
        )

    def _close_phase(self) -> None:
        if self._records:
            last = self._records[-1]
            last.replica_sent_bytes = self._exchange.sent_bytes - last.sent_bytes_before
