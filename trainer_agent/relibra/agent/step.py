"""The opening of a step: all ranks agree on one plan or none, and move experts to the homes it names."""

import logging
import time
from dataclasses import replace

import torch
import torch.distributed as dist

from relibra.agent.cells.cells import StepCells
from relibra.agent.config import AgentConfig
from relibra.agent.groups import Groups
from relibra.agent.homes.homes import Homes
from relibra.agent.plans import agreement
from relibra.agent.plans.agreement import Offer, Spent
from relibra.agent.plans.foretold import ForetoldPhases
from relibra.agent.plans.outcome import StepOutcome
from relibra.agent.plans.plan_source import PlanAnswer, PlanSource
from relibra.agent.plans.trials import Trials
from relibra.agent.plans.trouble import Trouble
from relibra.errors import InvalidPlan, RelibraError
from relibra.planning import Cause, Phase, StepPlan, check_step_plan
from relibra.planning.places import Placement
from relibra.planning.plan import Level

log = logging.getLogger(__name__)


class StepOpener:
    """Opens and closes the steps of one rank.

    Args:
        config: settings of the agent.
        groups: process groups of this rank.
        plans: where plans come from.
        homes: where the experts live.
        device: where lookup tables live.
    """

    def __init__(
        self, config: AgentConfig, groups: Groups, plans: PlanSource, homes: Homes, device: torch.device
    ) -> None:
        self._config, self._groups, self._plans, self._homes = config, groups, plans, homes
        self._device = device
        self.trials = Trials(is_on=config.guard, says=dist.get_rank(groups.everyone) == 0)
        """What was measured of plain and planned steps."""
        self.foretold = ForetoldPhases()
        """The phases whose counts are gathered ahead."""
        self._spent = Spent()
        """What the last step took on this rank."""
        self._accepted_epoch = 0
        self._last: StepPlan | None = None
        """The last plan that all ranks applied. A step without a plan keeps its placement and replicas."""
        self._unplanned = Trouble("steps use their plans again, after %d steps without one")
        self._over_budget = Trouble("steps fit into the memory budget again, after %d that did not")
        self._cells = self._cells_of(None)

    @property
    def cells(self) -> StepCells:
        """The cells of the open step; without replicas while no step is open.

        Raises:
            RelibraError: a reorder was interrupted, and the experts are between two placements, or they are lent.
        """
        _ = self._homes.placement  # raises
        self._homes.check_at_home()
        return self._cells

    def open(self, step: int, phase: Phase, timeout_s: float) -> StepOutcome:
        """Collective over all ranks: wait for the plan of `step`, agree on it, and move experts to their new homes.

        A step that is to run plain waits for no plan.
        """
        outcome = self._opened(step, phase, timeout_s)
        self.trials.note(phase, outcome)
        return outcome

    def _opened(self, step: int, phase: Phase, timeout_s: float) -> StepOutcome:
        began, plain = time.monotonic(), self.trials.plain(phase)
        answer = self._plans.wait(step, timeout_s) if plain is None else PlanAnswer(None, plain[1], plain[0])
        plan = answer.plan
        plan_wait_s = time.monotonic() - began
        offer, why = self._offer(step, answer)
        offer = replace(offer, spent=self._spent, foretold=self.foretold.foretold, untold=self.foretold.untold)
        offers = agreement.exchange(offer, self._groups.everyone)
        self.trials.hear(offers)
        self.foretold.hear(offers)
        decision = agreement.decide(offers)
        if plain is not None and decision.causes == plain[:1]:
            self._cells = self._cells_of(None)
            return StepOutcome(step=step, applied=None, causes=decision.causes, reason=plain[1])
        if plan is None or decision.plan_id is None:
            own = f" (this rank: {why})" if offer.plan_id is None else ""
            return self._without_plan(step, decision.causes, decision.reason + own, plan_wait_s)
        placement = self._homes.placement
        num_moved_experts = int((plan.home_rank_LE != placement.home_rank_LE).sum())
        began = time.monotonic()
        sent_bytes, failure = self._move_to(placement.with_homes(plan.home_rank_LE))
        reorder_s = time.monotonic() - began
        if failure is not None:
            reason = f"the reorder was undone: {failure}"
            return self._without_plan(step, (Cause.UNDONE,), reason, plan_wait_s, reorder_s)
        self._accepted_epoch = decision.plan_id.epoch
        self._unplanned.over()
        self._tell_excess(step, phase, plan)
        self._last, self._cells = plan, self._cells_of(plan)
        return StepOutcome(
            step=step,
            applied=decision.plan_id,
            reason=decision.reason,
            num_moved_experts=num_moved_experts,
            num_replicas=self.cells.num_replicas,
            reorder_sent_bytes=sent_bytes,
            plan_wait_s=plan_wait_s,
            reorder_s=reorder_s,
            expected_gain=plan.expected_gain,
        )

    def _tell_excess(self, step: int, phase: Phase, plan: StepPlan) -> None:
        """Say before a step runs that a rank will not have enough memory: once, until an update fits."""
        if dist.get_rank(self._groups.everyone):
            return
        if plan.excess and (phase is Phase.UPDATE or plan.level is not Level.HISTORY):
            self._over_budget.note("memory", "step %d is over its memory budget: %s", step, plan.excess)
        elif phase is Phase.UPDATE:
            self._over_budget.over()

    def close(self, spent: Spent) -> None:
        """End the step, which took `spent` on this rank: forwards outside steps have no replicas."""
        self._spent = spent
        self._cells = self._cells_of(None)

    def move_back(self) -> None:
        """Collective over all ranks: move every expert to its place in the plain model.

        Raises:
            RelibraError: the experts could not be moved.
        """
        self._last = None
        _, failure = self._move_to(Placement.identity(self._config.model, self._config.cluster))
        if failure is not None:
            raise RelibraError(f"could not move experts back to their original places: {failure}; call detach again")

    def _without_plan(
        self, step: int, causes: tuple[Cause, ...], reason: str, plan_wait_s: float, reorder_s: float = 0.0
    ) -> StepOutcome:
        """Begin a step that has no plan of its own: it keeps what all ranks applied last (L1)."""
        kept = None if self._last is None else self._last.id
        keeps = "its placement, without replicas" if kept is None else f"placement and replicas of plan {kept}"
        if causes == (Cause.UNSCHEDULED,):  # as on the first steps of a job that nobody schedules
            log.info("step %d keeps %s: %s", step, keeps, reason)
        else:
            self._unplanned.note(
                causes,
                "no plan since step %d: it keeps %s: %s",
                step,
                keeps,
                reason,
                level=logging.ERROR if Cause.UNDONE in causes else logging.WARNING,
            )
        self._cells = self._cells_of(self._last)
        return StepOutcome(
            step=step,
            applied=None,
            kept=kept,
            causes=causes,
            reason=reason,
            num_replicas=self.cells.num_replicas,
            plan_wait_s=plan_wait_s,
            reorder_s=reorder_s,
            expected_gain=0.0 if self._last is None else self._last.expected_gain,
        )

    def _offer(self, step: int, answer: PlanAnswer) -> tuple[Offer, str]:
        """Return the offer of this rank to the agreement, and why it does not offer the plan it was given."""
        plan, why, lack = answer
        if plan is None:
            return Offer(step=step, plan_id=None, lack=lack, is_scheduled=lack is not Cause.UNSCHEDULED), why
        if plan.id.epoch < self._accepted_epoch:
            why = f"plan {plan.id} has an older epoch than {self._accepted_epoch:016x}, which was applied before"
            return Offer(step=step, plan_id=None, lack=Cause.STALE), why
        try:
            if plan.step != step and not (plan.level is Level.HISTORY and plan.step < step):
                raise InvalidPlan.of("plan.step", expected=str(step), got=plan.step)
            check_step_plan(plan, self._config.model, self._config.cluster)
            if self._config.homes_stay and (plan.home_rank_LE != self._homes.placement.home_rank_LE).any():
                raise InvalidPlan.of(
                    "plan.home_rank",
                    expected="the homes that experts have, because this job's homes stay",
                    got="others",
                )
        except InvalidPlan as error:
            return Offer(step=step, plan_id=None, lack=Cause.INVALID), str(error)
        is_scheduled = plan.level is not Level.HISTORY
        return Offer(step=step, plan_id=plan.id, digest=plan.digest, is_scheduled=is_scheduled), why

    def _move_to(self, target: Placement) -> tuple[int, str | None]:
        sent_bytes, failure = self._homes.move_to(target)
        self._cells = self._cells_of(None)
        return sent_bytes, failure

    def _cells_of(self, plan: StepPlan | None) -> StepCells:
        return StepCells(
            self._homes.placement,
            self._config.cluster,
            ep_group=self._groups.seat.ep_group,
            ep_rank=self._groups.seat.ep_rank,
            plan=plan,
            device=self._device,
        )
