"""The object that the training loop drives, one per process: plans in, balanced steps and reports out."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.given_routing import GivenRouting
from relibra.agent.cells.gradient_return import returning_bytes
from relibra.agent.cells.layer import LayerExecution
from relibra.agent.cells.micro_batch import MicroBatch, RealisedLoad, current, running
from relibra.agent.cells.replay import check_routing
from relibra.agent.cells.routed_tokens import RoutedTokens
from relibra.agent.cells.visit import ReplicaContext
from relibra.agent.config import AgentConfig
from relibra.agent.experts import Experts
from relibra.agent.groups import Groups
from relibra.agent.homes.guard import WeightGuard
from relibra.agent.homes.homes import Homes
from relibra.agent.plans.outcome import PhaseRecord, StepOutcome
from relibra.agent.plans.session import PlanSource
from relibra.agent.refusals import Refusal
from relibra.agent.step import StepOpener
from relibra.agent.weights import WeightAccess
from relibra.errors import RelibraError, Unsupported
from relibra.planning import Phase
from relibra.planning.routing_check import RoutingCause

log = logging.getLogger(__name__)


class Agent(WeightAccess):
    """The agent of one rank, which executes its plans. `attach` makes it. It is not safe for concurrent threads."""

    def __init__(
        self,
        *,
        config: AgentConfig,
        models: Sequence[nn.Module],
        experts: Mapping[int, Experts],
        chunks: Mapping[int, Sequence[int]],
        homes: Homes,
        guard: WeightGuard,
        groups: Groups,
        plans: PlanSource,
        context: ReplicaContext,
        replay_obstacle: Callable[[], Refusal | None],
        device: torch.device,
    ) -> None:
        super().__init__(
            config=config,
            models=models,
            experts=experts,
            homes=homes,
            guard=guard,
            groups=groups,
            device=device,
            forget_replicas=context.fetcher.drain,
        )
        self._plans, self._context, self._replay_obstacle = plans, context, replay_obstacle
        self._opener = StepOpener(config, groups, plans, homes, device)
        self._outcome: StepOutcome | None = None
        self._records: list[PhaseRecord] = []
        self._logged: set[RoutingCause] = set()
        self._refusal: Unsupported | None = None
        self._unhook: Callable[[], None] = lambda: None
        self.layers = {
            index: LayerExecution(
                index=index,
                chunk=chunks[index],
                experts=each,
                context=context,
                active=self._active,
                has_routing=lambda: bool(self._records and self._records[-1].routed_LTK),
                logical_experts=functools.partial(self._logical_experts, index),
                check_weights=functools.partial(guard.check_if_written, index),
            )
            for index, each in experts.items()
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
    def slot_bytes(self) -> int:
        """The memory of the redundant slots on this rank. It does not grow with layers or micro-batches."""
        return self._context.slots.size_bytes

    @property
    def gradient_bytes(self) -> int:
        """The most memory that replicas' gradients take on this rank, beside the slots, in the backward of one cell."""
        cluster, dtype = self._config.cluster, self._context.slots.gradient_dtype
        return returning_bytes(self._experts.values(), cluster.redundant_slots, cluster.gpus_per_node, dtype)

    def hook(self, unhook: Callable[[], None]) -> None:
        """Set the function with which `detach` takes the agent out of the model. Only `attach` calls this method."""
        self._unhook = unhook

    def prefetch(self, step: int) -> None:
        """Start to fetch the plan of `step`, and return at once. `end_step` does this for the step that follows."""
        self._plans.prefetch(step)

    def begin_step(self, step: int, phase: Phase) -> StepOutcome:
        """Collective over all ranks: begin a phase of `step`. Call it between an optimizer step and the next forward.

        In the first phase of a step, the agent waits for the plan (at most `plan_timeout_s`), agrees on it with all
        ranks, and moves experts to their new homes. A later phase of the same step executes the agreed plan. If the
        ranks do not all hold the same plan, the step keeps its placement and makes no replicas; the outcome says why.
        If another step is still open, it ends first.

        No optimizer may step in phase RECOMPUTE. With `host_copy`, this phase begins with a copy of the weights to host
        memory, and the call returns when all ranks of the node have made it.

        Raises:
            RelibraError: a rank is gone, or a reorder failed and could not be undone. Restart from the last checkpoint.
                On all ranks, if weights were written behind the agent's back; the message says what to do.
            Unsupported: routers did not use the routing that was set in the step that this call ended.
        """
        self._groups.rebuild_if_destroyed()
        self._guard.check_memory()
        is_first = self._outcome is None or self._outcome.step != step
        if is_first:
            self._close_step()
            self._check_weights(self._guard.check_trained)
            self._raise_refusal()
            self._outcome = self._opener.open(step)
            self._guard.is_armed |= self._outcome.applied is not None
        else:
            is_update = phase is Phase.UPDATE
            self._check_weights(self._guard.check_trained if is_update else self._guard.check_known)
        if phase is Phase.UPDATE:
            self._guard.forget()  # from now on the optimizer changes the weights, until the step ends
        elif is_first:
            self._guard.note_trained()
        assert self._outcome is not None
        self._named_at = None  # a checkpoint is loaded right after its names are asked for, or not at all
        self._close_phase()
        self._context.fetcher.drain()
        if phase is Phase.RECOMPUTE and self._opener.cells.has_replicas:
            self._context.fetcher.freeze()
        cells = self._opener.cells
        record = PhaseRecord.begin(
            phase,
            self._outcome,
            is_first=is_first,
            realised=RealisedLoad(cells.num_micro_batches, self._config.model.num_layers),
            routed=None if cells.planned_MLB is None else RoutedTokens(cells.planned_MLB),
            transport=self._context.transport,
        )
        self._records.append(record)
        return self._outcome

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
                If that only shows in a forward, the forward, `end_step` or the next `begin_step` raises this error.
        """
        if not self._records:
            raise RelibraError("routing can only be set in a phase of a step: call begin_step first")
        if (obstacle := self._replay_obstacle()) is not None:
            raise Unsupported(f"the model is built with {obstacle.what}; {obstacle.fix}")
        self._records[-1].routed_LTK[micro_batch] = check_routing(routed_LTK, self._config.model)

    def micro_batch(self, index: int, routing: Tensor | None = None) -> AbstractContextManager[None]:
        """Return the context for the forward of micro-batch `index` of the phase. Its backward may run inside or later.

        Args:
            index: the index of the micro-batch in the phase.
            routing: as in `set_routing`, with the same errors. Without routing, megatron's own replay or the router
                decides.
        """
        if routing is not None:
            self.set_routing(index, routing)
        record = self._records[-1] if self._records else None
        return running(
            MicroBatch(
                agent=self,
                index=index,
                cells=self._opener.cells,
                realised=record.realised if record is not None else None,
                routed=record.routed if record is not None else None,
                given=record.given if record is not None else GivenRouting(),
                routed_LTK=record.routed_LTK.get(index) if record is not None else None,
            )
        )

    def forward_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the `forward_step_func(data_iterator, model, ...)` of megatron's schedules, instead of `micro_batch`.

        The wrapper counts the micro-batches of every model chunk from the beginning of the phase, because all schedules
        run them in order. Outside a phase, a wrapped call raises `RelibraError`.
        """

        @functools.wraps(function)
        def forward_step(data_iterator: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._records:
                raise RelibraError("a forward step ran outside a phase: call begin_step first")
            begun = self._records[-1].begun_by_chunk
            index = begun.get(id(model), 0)
            begun[id(model)] = index + 1
            with self.micro_batch(index):
                return function(data_iterator, model, *args, **kwargs)

        return forward_step

    def realised_load(self, phase: Phase) -> NDArray[np.int64]:
        """Return the token copies this rank has computed so far in `phase` of the open step, int64 `[M, L]`.

        Raises:
            RelibraError: the phase has not begun.
        """
        for record in self._records:
            if record.phase == phase:
                return record.realised.load_ML
        raise RelibraError(f"phase {phase} is not open: call begin_step first, and realised_load before end_step")

    def end_step(self) -> None:
        """End the open step, after `optimizer.step()`: drop replicas, send reports, and start to fetch the next plan.

        The call does not wait for the planner. In a pipeline it makes one small exchange between the ranks of all
        stages that have the same EP rank and EP group, because the planner sees them as one rank.

        Raises:
            Unsupported: routers did not use the routing that was set in this step. The step has ended nevertheless.
        """
        self._groups.rebuild_if_destroyed()
        ended = self._outcome
        self._close_step()
        if ended is not None:
            self._plans.prefetch(ended.step + 1)
        self._raise_refusal()

    def detach(self) -> None:
        """Collective over all ranks: move every expert back to its original place, and remove the agent from the model.

        Raises:
            RelibraError: the experts could not be moved back, or weights were written behind the agent's back. The
                agent stays attached.
            Unsupported: routers did not use the routing that was set in the step that this call ended. The agent is
                detached nevertheless.
        """
        self._groups.rebuild_if_destroyed()
        self._close_step()
        self._check_weights(self._guard.check_trained)
        self._opener.move_back()
        self._guard.forget()
        self._unhook()
        self._unhook = lambda: None
        self._plans.close()
        self._groups.close()
        self._raise_refusal()

    def _active(self) -> tuple[StepCells, MicroBatch | None]:
        return self._opener.cells, current(self)

    def _close_step(self) -> None:
        self._context.fetcher.drain()
        self._close_phase()
        if any(record.phase is Phase.UPDATE for record in self._records):
            self._guard.note_trained()
        for record in self._records:
            record.check_routing()
            self._log_routing(record)
            self._refusal = self._refusal or record.given.refusal()
            if self._groups.num_stages > 1:
                record.add_up(self._groups.pipeline, self._device)
            if self._groups.stage_index == 0:
                self._plans.report(record.report(ep_group=self.ep_group, ep_rank=self.ep_rank))
        self._records = []
        if self._outcome is not None:
            self._outcome = None
            self._opener.close()

    def _raise_refusal(self) -> None:
        """Raise the error of routing that had no effect in the step that ended, once."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def _log_routing(self, record: PhaseRecord) -> None:
        """Log every likely cause of routing that differs from the plan once in the life of the agent."""
        for cause, num_cells in record.routing.otherwise.items():
            if cause not in self._logged:
                self._logged.add(cause)
                log.warning(
                    "step %d, phase %s: routing differs from what was planned in %d of %d cells of this rank; likely "
                    "cause: %s. The plan cannot balance such cells (docs/runbook.md#relibraroutedotherwise). This "
                    "cause is logged once; the status service counts its cells in every step",
                    record.outcome.step,
                    record.phase,
                    num_cells,
                    record.routing.num_cells,
                    cause.likely,
                )

    def _close_phase(self) -> None:
        if self._records:
            self._records[-1].end()
