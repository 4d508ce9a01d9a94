"""The object that the training loop drives, one per process: plans in, balanced steps and reports out."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from relibra.agent.cells.layer import LayerExecution
from relibra.agent.cells.visit import ReplicaContext
from relibra.agent.config import AgentConfig
from relibra.agent.connection import copy_to_host
from relibra.agent.expert_times import ExpertTimes, measure_experts
from relibra.agent.experts import Experts
from relibra.agent.groups import Groups
from relibra.agent.homes.by_place import PlaceNames
from relibra.agent.homes.guard import WeightGuard
from relibra.agent.homes.homes import Homes
from relibra.agent.link_rates import LinkRates, measure_links
from relibra.agent.phases import Phases
from relibra.agent.plans.agreement import Spent
from relibra.agent.plans.outcome import StepOutcome
from relibra.agent.plans.plan_source import PlanSource
from relibra.agent.plans.stopwatch import Clock
from relibra.agent.setting import Refusal
from relibra.agent.step import StepOpener
from relibra.agent.weights import WeightAccess
from relibra.planning import Phase


class Agent(WeightAccess):
    """The agent of one rank, which executes its plans. `attach` makes it. It is not safe for concurrent threads."""

    def __init__(
        self,
        *,
        config: AgentConfig,
        models: Sequence[nn.Module],
        experts: Mapping[int, Experts],
        unplanned: Sequence[Experts],
        homes: Homes,
        guard: WeightGuard,
        places: PlaceNames,
        groups: Groups,
        plans: PlanSource,
        context: ReplicaContext,
        reduces_early: bool,
        replay_obstacle: Callable[[], Refusal | None],
        device: torch.device,
        clock: Clock,
    ) -> None:
        super().__init__(
            config=config,
            models=models,
            experts=experts,
            unplanned=unplanned,
            homes=homes,
            guard=guard,
            places=places,
            groups=groups,
            forget_replicas=context.drain,
        )
        self._plans, self._context = plans, context
        self._opener = StepOpener(config, groups, plans, homes, device)
        self._phases = Phases(
            model=config.model,
            groups=groups,
            plans=plans,
            transport=context.transport,
            clock=clock,
            cells=lambda: self._opener.cells,
            foretold=self._opener.foretold,
            replay_obstacle=replay_obstacle,
            device=device,
        )
        self._outcome: StepOutcome | None = None
        self._last_step: int | None = None
        self._unhook: Callable[[], None] = lambda: None
        self.layers = {
            index: LayerExecution(
                index=index,
                experts=of_layer,
                context=context,
                reduces_early=reduces_early,
                owner=self._phases,
                cells=lambda: self._opener.cells,
                has_routing=self._phases.has_routing,
                logical_experts=places.logical_experts,
                check_weights=guard.check_forward,
                note_forward=places.forget_sharded_names,
            )
            for index, of_layer in experts.items()
        }
        """The MoE layers of this rank, by their index among the MoE layers of the whole model."""

    @property
    def ep_rank(self) -> int:
        """The index of this rank within its EP group."""
        return self._groups.seat.ep_rank

    @property
    def ep_group(self) -> int:
        """The index of this rank's EP group."""
        return self._groups.seat.ep_group

    @property
    def homes_stay(self) -> bool:
        """Whether no plan moves an expert, so that a place always stands for the same one."""
        return self._config.homes_stay

    @property
    def slot_bytes(self) -> int:
        """The memory of the redundant slots on this rank. It does not grow with layers or micro-batches."""
        return self._context.slots.size_bytes

    @property
    def gradient_bytes(self) -> int:
        """The most memory that replicas' gradients take on this rank, beside the slots, in the backward of one cell."""
        arrivals, num_leaving = self._context.returns.arrivals, self._config.cluster.redundant_slots
        if self._context.slots.has_gradients:
            num_leaving = 0  # they lie in the slots
        return (arrivals.num_places + num_leaving) * arrivals.gradient_bytes

    def measure_speeds(self) -> tuple[LinkRates, ExpertTimes]:
        """Collective over all ranks, before the first step: measure links, and how long experts compute.

        Raises:
            RelibraError: a peer is gone.
        """
        links = measure_links(self._context, self._experts, self._groups, self._config.cluster)
        gathered, device = self._context.fetcher.gathered, self._context.slots.device
        return links, measure_experts(self._experts, gathered, self._groups.everyone, device)

    @property
    def relays(self) -> bool:
        """Whether ranks relay replicas that they receive."""
        return self._context.transport.relays

    def keep_host_copy(self) -> None:
        """Collective over all ranks, before the first step: keep a host copy of experts (`AgentConfig.host_copy`).

        Raises:
            RelibraError: a peer is gone.
            Unsupported: on all ranks, if a node cannot have it.
        """
        self._context.fetcher.host_copy = copy_to_host(self._groups, self._context.transport, self._experts)

    def hook(self, unhook: Callable[[], None]) -> None:
        """Set the function that takes the agent out of the model and closes its groups. Only `attach` calls this."""
        self._unhook = unhook

    def prefetch(self, step: int) -> None:
        """Start to fetch the plan of `step`, and return at once. `end_step` does this for the step that follows."""
        self._plans.prefetch(step)

    def rollback(self, step: int) -> None:
        """Go back to `step` without a restart: the training has loaded an older checkpoint, or repeats a step.

        Call it on all ranks after `PlannerClient.rollback`, and then `begin_step(step, ...)`. An open step ends without
        a report, and plans that were fetched ahead are dropped. Experts stay where they are. `begin_step` makes this
        call itself for a step that is not above the one before, so without it only a plan that was fetched ahead for
        the step after the last one may be out of date.
        """
        self._close_step(with_reports=False)
        self._opener.trials.drop()
        self._plans.rollback(step)
        self._last_step = None

    def begin_step(self, step: int, phase: Phase, *, plan_timeout_s: float | None = None) -> StepOutcome:
        """Collective over all ranks: begin a phase of `step`. Call it between an optimizer step and the next forward.

        In the first phase of a step, the agent waits for the plan (at most `plan_timeout_s`, by default that of its
        settings), agrees on it with all ranks, and moves experts to their new homes. Nobody waits for the plan of a
        step that was not submitted: the newest plan from history is there, or the step keeps the last plan. A later
        phase of the same step executes the agreed plan. If the ranks do not all hold the same plan, the step keeps the
        last one; the outcome says why. If another step is still open, it ends first. A step that is not above the one
        before repeats it: see `rollback`.

        With `guard`, some steps are run plain and measured: every expert stays at the home that it has, and no copies
        are made. If planned steps are not faster, this goes on until the next trial. `causes` of the outcome say so.

        No optimizer may step in phase RECOMPUTE. With `host_copy`, this phase begins with a copy of the weights to host
        memory, and the call returns when all ranks of the node have made it.

        Raises:
            RelibraError: a rank is gone, or a reorder failed and could not be undone. Restart from the last checkpoint.
                On all ranks, if weights were written behind the agent's back; the message says what to do.
            Unsupported: on all ranks, if the routers of one rank did not use the routing that was set.
        """
        self._groups.rebuild_if_destroyed()
        self._homes.check_at_home()
        is_first = self._outcome is None or self._outcome.step != step
        if is_first:
            if self._last_step is not None and step <= self._last_step:
                self.rollback(step)
            self._close_step()
        check = self._guard.check_trained if is_first or phase is Phase.UPDATE else self._guard.check_known

        def check_present() -> None:
            self._guard.check_memory()
            check()

        self._check_weights(check_present, f"before phase {phase} of step {step}", self._phases.take_refusal())
        if is_first:
            self._last_step = step
            timeout_s = self._config.plan_timeout_s if plan_timeout_s is None else plan_timeout_s
            self._outcome = self._opener.open(step, phase, timeout_s)
            self._guard.is_armed |= self._outcome.applied is not None and not self._config.homes_stay
            self._guard.note_begun(has_moved=self._outcome.num_moved_experts > 0)
        if phase is Phase.UPDATE and not self._guard.sees_optimizer:
            self._guard.forget()  # from now on an optimizer changes the weights, until the step ends
        assert self._outcome is not None
        self._places.forget_sharded_names()
        self._phases.end_phase()
        self._context.drain()
        if phase is Phase.RECOMPUTE and self._opener.cells.has_replicas:
            self._context.fetcher.freeze()
        self._phases.begin(phase, self._outcome)
        return self._outcome

    def runs_plain(self, phase: Phase) -> bool:
        """Return whether a step that begins now with `phase` runs plain, so that nobody need submit it (`guard`)."""
        return self._opener.trials.plain(phase) is not None

    def set_routing(self, micro_batch: int, routed_LTK: Tensor) -> None:
        """Set the routing of a micro-batch of the open phase. Its forward and any recomputation use it.

        Args:
            micro_batch: the index of the micro-batch in the phase.
            routed_LTK: the experts of this rank's tokens in all MoE layers of the model, `[L, T, K]` of any integer
                dtype; tokens in the order in which the router sees them. A row of -1 leaves the token to the router.

        Raises:
            InvalidInput: the shape or dtype is wrong, or a row names an expert twice or one that does not exist.
            RelibraError: no phase is open.
            Unsupported: the model's routers would ignore the routing, or another routing replay is installed on them.
                If only a forward shows it, all ranks raise it before the optimizer steps or in the next `begin_step`.
        """
        self._phases.set_routing(micro_batch, routed_LTK)

    def micro_batch(self, index: int, routing: Tensor | None = None) -> AbstractContextManager[None]:
        """Return the context for the forward of micro-batch `index` of the phase. Its backward may run inside or later.

        Args:
            index: the index of the micro-batch in the phase.
            routing: as in `set_routing`, with the same errors. Without routing, megatron's own replay or the router
                decides.
        """
        return self._phases.micro_batch(index, routing)

    def forward_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the `forward_step_func(data_iterator, model, ...)` of megatron's schedules, instead of `micro_batch`.

        The wrapper counts the micro-batches of every model chunk from the beginning of the phase, because all schedules
        run them in order. Outside a phase, a wrapped call raises `RelibraError`.
        """
        return self._phases.forward_step(function)

    def realised_load(self, phase: Phase) -> NDArray[np.int64]:
        """Return the token copies this rank has computed so far in `phase` of the open step, int64 `[M, L]`.

        Raises:
            RelibraError: the phase has not begun.
        """
        return self._phases.realised_load(phase)

    def end_step(self) -> None:
        """End the open step, after `optimizer.step()`: drop replicas, send reports, and start to fetch the next plan.

        The call does not wait for the planner. In a pipeline it makes one small exchange between the ranks of all
        stages that have the same EP rank and EP group, because the planner sees them as one rank.
        """
        self._groups.rebuild_if_destroyed()
        ended = self._outcome
        self._places.forget_sharded_names()
        self._close_step()
        if ended is not None:
            self._plans.prefetch(ended.step + 1)

    def detach(self) -> None:
        """Collective over all ranks: move every expert back to its original place, and remove the agent from the model.

        Raises:
            RelibraError: the experts could not be moved back, or weights were written behind the agent's back. The
                agent stays attached.
            Unsupported: routers did not use the routing of the step that this call ended. The agent is detached.
        """
        self._groups.rebuild_if_destroyed()
        self._close_step()
        self._check_weights(self._guard.check_trained, "before detaching")
        self._opener.move_back()
        self._guard.forget()
        self._plans.close()
        try:
            self._check_weights(lambda: None, "in the last step", self._phases.take_refusal())
        finally:
            self._unhook()
            self._unhook = lambda: None

    def check_before_training(self) -> None:
        """Collective over all ranks: check what trains. Only `attach` calls this, before every step of the optimizer.

        Raises:
            RelibraError: other weights than the trained ones are in the modules of a rank, or the phase is RECOMPUTE.
            Unsupported: the routers of a rank did not use the routing that was set.
        """
        self._phases.mark()
        self._context.drain()
        self._homes.check_at_home()
        self._phases.check_may_train()
        self._check_weights(self._guard.check_trained, "before the optimizer's step", self._phases.take_refusal())

    def _close_step(self, *, with_reports: bool = True) -> None:
        self._context.drain()
        if self._phases.has(Phase.UPDATE) and not self._guard.sees_optimizer:
            self._phases.mark()
            self._guard.note_trained()
        spent = Spent()
        if with_reports:
            spent = self._phases.close()
        else:
            self._phases.drop()
        if self._outcome is not None:
            self._outcome = None
            self._opener.close(spent)
