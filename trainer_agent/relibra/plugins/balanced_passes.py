"""The passes of one engine with an agent inside, and what leaves it: planned, begun, ended, under the right names."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.agent import Agent, Phase
from relibra.plugins.logical_export import Renamed, exporting, logical_export
from relibra.plugins.planned_passes import PlannedPasses
from relibra.routing import ModelLayers
from relibra.steps import RankBatch


class BalancedPasses:
    """Drives the agent of one engine, whose passes are numbered in order: each is a step at the planner.

    An engine has this object before an agent is attached to its model, too. Until then, and where none is attached at
    all, every method leaves the engine as it is.

    Args:
        agent: the agent of this rank.
        planned: reports the passes of the job to the planner.
        layers: the layers of the model.
        next_index: the number of the first pass, above those of an engine that this one replaces.
    """

    def __init__(
        self,
        agent: Agent | None = None,
        planned: PlannedPasses | None = None,
        layers: ModelLayers | None = None,
        *,
        next_index: int = 0,
    ) -> None:
        self.agent, self._planned, self._layers = agent, planned, layers
        self.next_index = next_index
        """The number of the next pass."""
        self._is_planned = False
        self._key: Hashable = None

    @property
    def planned(self) -> PlannedPasses:
        """What reports the passes of the job to the planner. Use it once an agent is attached."""
        assert self._planned is not None
        return self._planned

    @property
    def layers(self) -> ModelLayers:
        """The layers of the model. Use it once an agent is attached."""
        assert self._layers is not None
        return self._layers

    def close(self) -> None:
        """Take the agent out of the model, and end the calls to the planner: the engine builds another model."""
        if self.agent is not None:
            self.agent.detach()
            self.planned.close()
            self.agent = None

    def begin(self, phase: Phase, batch: Callable[[], RankBatch], key: Hashable = None) -> bool:
        """Collective over all ranks: let a pass be planned and begin it; return whether it runs under a plan.

        Args:
            phase: what the pass is for.
            batch: makes the batch of this data-parallel rank. Only reporting ranks call it.
            key: names the micro-batches of the pass. If the pass before had an equal key, both are phases of one step.
        """
        if key is None or key != self._key:
            self.next_index += 1
            is_submitted = self.planned.plan(self.next_index - 1, batch)
            self._key = key if is_submitted else None
        else:
            is_submitted = True
        return self._begin(phase, is_submitted=is_submitted)

    def begin_forecast(self, phase: Phase, num_micro_batches: int) -> bool:
        """Collective over all ranks: begin a pass whose routing nobody knows yet; return whether it has a plan.

        Args:
            phase: what the pass is for.
            num_micro_batches: the micro-batches of each EP group.
        """
        self.next_index += 1
        return self._begin(phase, is_submitted=self.planned.forecast(self.next_index - 1, num_micro_batches))

    def begin_unplanned(self) -> None:
        """Collective over all ranks: begin a pass that is not planned; the pass before has ended."""
        self._begin(Phase.UPDATE, is_submitted=False)

    def _begin(self, phase: Phase, *, is_submitted: bool) -> bool:
        assert self.agent is not None
        self._is_planned = is_submitted
        if is_submitted:
            self.agent.begin_step(self.next_index - 1, phase)
        else:
            self.agent.end_step()
        return is_submitted

    def pause(self) -> None:
        """Run the micro-batches that follow without the plan of the last pass, whose step stays open."""
        self._is_planned = False

    def end(self) -> None:
        """Collective over all ranks: end the last pass, after the optimizer stepped."""
        self._is_planned, self._key = False, None
        if self.agent is not None:
            self.agent.end_step()

    def note_routed(self, counts_LE: NDArray[np.uint32]) -> None:
        """Report how this rank routed the tokens of the last pass, for the forecasts of later passes."""
        self.planned.note_routed(self.next_index - 1, counts_LE)

    def forward_step(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs a micro-batch of the last pass; under a plan, it tells the agent which one."""
        return self.agent.forward_step(run) if self.agent is not None and self._is_planned else run

    @contextmanager
    def in_schedules_of(self, module: Any) -> Iterator[None]:
        """Have megatron's schedules tell the agent which micro-batch of the last pass runs in the body.

        Args:
            module: the module of the framework that calls megatron's `get_forward_backward_func`, by this name.
        """
        schedule_of = module.get_forward_backward_func

        def get_forward_backward_func(*args: Any, **kwargs: Any) -> Callable[..., Any]:
            schedule = schedule_of(*args, **kwargs)

            def run(*, forward_step_func: Callable[..., Any], **of_schedule: Any) -> Any:
                return schedule(forward_step_func=self.forward_step(forward_step_func), **of_schedule)

            return run

        with replaced(module, "get_forward_backward_func", get_forward_backward_func):
            yield

    def ignoring_names(self) -> AbstractContextManager[None]:
        """Let the body read names of parameters, which it does not use."""
        return nullcontext() if self.agent is None else self.agent.ignoring_names()

    def at_original_places(self) -> AbstractContextManager[None]:
        """Collective over all ranks: have every expert at its original place in the body."""
        return nullcontext() if self.agent is None else self.agent.at_original_places()

    def read_at_original_places(self, weights: Iterable[Any]) -> Iterator[Any]:
        """Yield an export while every expert is at its original place. The first read and the end are collective."""
        with self.at_original_places():
            yield from weights

    def exporting(self) -> AbstractContextManager[Renamed]:
        """Collective over all ranks: export by place in the body; see `logical_export.exporting`."""
        if self.agent is None:
            return nullcontext(lambda weights, is_whole=True: iter(weights))
        return exporting(self.agent, self.layers)

    def exported(self, weights: Iterable[tuple[str, Any]], *, is_whole: bool = True) -> Iterator[tuple[str, Any]]:
        """Yield an export with each expert under its own name. The first read is collective over all ranks."""
        if self.agent is None:
            return iter(weights)
        return logical_export(self.agent, self.layers, weights, is_whole=is_whole)

    @contextmanager
    def loading_by_place(self) -> Iterator[None]:
        """Collective over all ranks: let the body load weights by place, as they were before the first reorder."""
        if self.agent is None:
            yield
            return
        with self.agent.restoring(self.agent.original_order):
            yield
        self.agent.accept_weights()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute in the body."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
