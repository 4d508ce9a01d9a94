"""One object per training process, driven by the training loop: plans in, balanced steps and reports out."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.gradient_return import returning_bytes
from relibra.agent.cells.layer import LayerExecution
from relibra.agent.cells.micro_batch import MicroBatch, RealisedLoad, current, running
from relibra.agent.cells.replay import check_routing
from relibra.agent.cells.visit import ReplicaContext
from relibra.agent.config import AgentConfig
from relibra.agent.experts import Experts
from relibra.agent.groups import Groups
from relibra.agent.homes.checkpoint import logical_named_parameters
from relibra.agent.homes.homes import Homes
from relibra.agent.plans.outcome import PhaseRecord, StepOutcome
from relibra.agent.plans.session import PlanSource
from relibra.agent.step import StepOpener
from relibra.errors import RelibraError, Unsupported
from relibra.planning import Phase


class Agent:
    """Executes the plans of one rank. Made by `attach`; not for several threads at once."""

    def __init__(
        self,
        *,
        config: AgentConfig,
        models: Sequence[nn.Module],
        experts: Mapping[int, Experts],
        chunks: Mapping[int, Sequence[int]],
        homes: Homes,
        groups: Groups,
        plans: PlanSource,
        context: ReplicaContext,
        replay_obstacle: str | None,
        device: torch.device,
    ) -> None:
        self._config, self._groups, self._plans, self._context = config, groups, plans, context
        self._models, self._experts, self._homes = models, experts, homes
        self._replay_obstacle, self._device = replay_obstacle, device
        self._opener = StepOpener(config, groups, plans, homes, device)
        self._outcome: StepOutcome | None = None
        self._records: list[PhaseRecord] = []
        self._unhook: Callable[[], None] = lambda: None
        self.layers = {
            index: LayerExecution(
                index=index,
                chunk=chunks[index],
                experts=each,
                context=context,
                active=self._active,
                has_routing=lambda: bool(self._records and self._records[-1].routed_LTK),
                logical_experts=functools.partial(homes.logical_experts, index),
            )
            for index, each in experts.items()
        }
        """This rank's layers, by index among the MoE layers of the whole model."""

    @property
    def home_rank_LE(self) -> NDArray[np.int32]:
        """A copy of the current placement, of all layers of the model."""
        return self._homes.placement.home_rank_LE.copy()

    @property
    def expert_of_place_LE(self) -> NDArray[np.int32]:
        """The logical expert at every place, of all layers of the model, int32 `[L, E]`; changes in `begin_step` only.

        A place is what megatron numbers: EP rank x experts per rank + position among the rank's experts. Whoever names
        experts by place, as converters do, must look each one up here.
        """
        return self._homes.placement.expert_of_place_LE

    @property
    def ep_rank(self) -> int:
        """This rank within its EP group."""
        return self._groups.seat.ep_rank

    @property
    def ep_group(self) -> int:
        """Index of this rank's EP group."""
        return self._groups.seat.ep_group

    @property
    def slot_bytes(self) -> int:
        """Memory of the redundant slots on this rank, whatever the numbers of layers and micro-batches."""
        return self._context.slots.size_bytes

    @property
    def gradient_bytes(self) -> int:
        """The most that gradients of replicas take on this rank beside the slots: in a backward, one cell at a time."""
        cluster, dtype = self._config.cluster, self._context.slots.gradient_dtype
        return returning_bytes(self._experts.values(), cluster.redundant_slots, cluster.gpus_per_node, dtype)

    def hook(self, unhook: Callable[[], None]) -> None:
        """Remember how `detach` takes the agent out of the model."""
        self._unhook = unhook

    def prefetch(self, step: int) -> None:
        """Start fetching the plan of `step`; returns at once. `end_step` does so for the step after its own."""
        self._plans.prefetch(step)

    def begin_step(self, step: int, phase: Phase) -> StepOutcome:
        """Collective over all ranks: begin a phase of `step`, between an optimizer step and the next forward.

        The first phase of a step waits for the plan (at most `plan_timeout_s`), agrees on it with all ranks, and moves
        experts to their new homes. A later phase of the same step executes what was agreed. Where the ranks do not all
        hold the same plan, the step keeps the placement it has and makes no replicas. In RECOMPUTE no optimizer steps;
        with `host_copy` it begins by copying the weights to the host, for which this waits.
        """
        is_first = self._outcome is None or self._outcome.step != step
        if is_first:
            self._close_step()
            self._outcome = self._opener.open(step)
        assert self._outcome is not None
        self._close_phase()
        self._context.fetcher.drain()
        if phase is Phase.RECOMPUTE and self._opener.cells.has_replicas:
            self._context.fetcher.freeze()
        self._records.append(
            PhaseRecord(
                phase=phase,
                outcome=self._outcome,
                is_first=is_first,
                realised=RealisedLoad(self._opener.cells.num_micro_batches, self._config.model.num_layers),
                reorder_sent_bytes=self._outcome.reorder_sent_bytes if is_first else 0,
                reorder_s=self._outcome.reorder_s if is_first else 0.0,
                sent_bytes_before=self._context.transport.sent_bytes,
                waited_before_s=self._context.transport.waited_s,
            )
        )
        return self._outcome

    def set_routing(self, micro_batch: int, routed_LTK: Tensor) -> None:
        """Give the open phase the routing of a micro-batch, for its forward and any recomputation, in any schedule.

        Args:
            micro_batch: index in the phase.
            routed_LTK: experts of this rank's tokens, in the order in which the router sees them, in all MoE layers of
                the model; any integer dtype. A row of -1 leaves the token to the router.

        Raises:
            InvalidInput: a shape, dtype or row that cannot be routed; see `check_routing`.
            RelibraError: no phase is open.
            Unsupported: the model's routers would ignore it.
        """
        if not self._records:
            raise RelibraError("routing belongs to a phase of a step: call begin_step first")
        if self._replay_obstacle is not None:
            raise Unsupported(f"the model is built with {self._replay_obstacle}")
        self._records[-1].routed_LTK[micro_batch] = check_routing(routed_LTK, self._config.model)

    def micro_batch(self, index: int, routing: Tensor | None = None) -> AbstractContextManager[None]:
        """Context of the forward of micro-batch `index` of the phase; its backward may run inside or later.

        `routing` is that of `set_routing`. Where there is none, megatron's own replay or the router decides.
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
                routed_LTK=record.routed_LTK.get(index) if record is not None else None,
            )
        )

    def forward_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the `forward_step_func(data_iterator, model, ...)` of megatron's schedules, in place of `micro_batch`.

        Micro-batches are counted from the beginning of the phase, for every model chunk: all schedules take them in
        order.
        """

        @functools.wraps(function)
        def forward_step(data_iterator: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._records:
                raise RelibraError("a forward step belongs to a phase of a step: call begin_step first")
            begun = self._records[-1].begun_by_chunk
            index = begun.get(id(model), 0)
            begun[id(model)] = index + 1
            with self.micro_batch(index):
                return function(data_iterator, model, *args, **kwargs)

        return forward_step

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
        """End the open step, after `optimizer.step()`: replicas are gone, reports and the next plan are on their way.

        Waits for nothing but, in a pipeline, one small exchange with the same seats of the other stages: together they
        are what the planner knows as one rank.
        """
        ended = self._outcome
        self._close_step()
        if ended is not None:
            self._plans.prefetch(ended.step + 1)

    def logical_named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's parameters, experts under their global logical id.

        Merged over the ranks of an EP group, this is the state of the same model with one rank, whatever the placement.
        Of several model chunks, names begin with `model<chunk>.`.
        """
        return logical_named_parameters(self._models, self._experts, self._homes.logical_experts)

    def detach(self) -> None:
        """Collective over all ranks: bring every expert back to where it was, and leave the plain model behind.

        Raises:
            RelibraError: an expert could not be brought back; the agent stays.
        """
        self._close_step()
        self._opener.move_back()
        self._unhook()
        self._unhook = lambda: None
        self._plans.close()
        self._groups.close()

    def _active(self) -> tuple[StepCells, MicroBatch | None]:
        return self._opener.cells, current(self)

    def _close_step(self) -> None:
        self._context.fetcher.drain()
        self._close_phase()
        for record in self._records:
            if self._groups.num_stages > 1:
                record.add_up(self._groups.pipeline, self._device)
            if self._groups.stage_index == 0:
                self._plans.report(record.report(ep_group=self.ep_group, ep_rank=self.ep_rank))
        self._records = []
        if self._outcome is not None:
            self._outcome = None
            self._opener.close()

    def _close_phase(self) -> None:
        if self._records:
            last = self._records[-1]
            last.replica_sent_bytes = self._context.transport.sent_bytes - last.sent_bytes_before
            last.replica_wait_s = self._context.transport.waited_s - last.waited_before_s
