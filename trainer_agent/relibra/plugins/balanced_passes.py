"""The passes of one engine with an agent inside, and what leaves it: planned, begun, ended, under the right names."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

from relibra.agent import Agent, Phase, StepOutcome
from relibra.planning import Cause
from relibra.plugins.logical_export import Renamed, exporting, logical_export
from relibra.plugins.plan_wait import PlanWait
from relibra.plugins.planned_passes import PlannedPasses
from relibra.routing import ModelLayers
from relibra.steps import RankBatch

_ANSWER_S = 1.0
"""How long a pass waits for the planner's answer before it treats the planner as away. This holds for the answer to its
report, unless the plan could save more, and for the newest plan from history, which the planner has or not."""


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
        self._runs = False
        """Whether micro-batches belong to the last pass."""
        self._key: Hashable = None
        if planned is not None:
            self._wait = PlanWait(planned.settings.plan_timeout_s, planned.cluster.num_ranks)

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

    def close(self, *, goes_on: bool = False) -> None:
        """Take the agent out of the model, and end the calls to the planner.

        Args:
            goes_on: whether the job goes on, because the engine builds another model. Else the training ended.
        """
        if self.agent is not None:
            self.agent.detach()
            self.planned.close(goes_on=goes_on)
            self.agent = None

    def begin(
        self, phase: Phase, batch: Callable[[], RankBatch] | None = None, key: Hashable = None
    ) -> StepOutcome | None:
        """Collective over all ranks: begin a pass, which is planned from all that is known of it.

        Returns how it will be executed, or None without an agent.

        Args:
            phase: what the pass is for.
            batch: makes the batch of this data-parallel rank, if its routing is known. Only reporting ranks call it.
                Without a batch, and where it raises or the planner does not take it, the pass is planned from history.
            key: names the micro-batches of the pass. If the pass before had an equal key, both are phases of one step.
        """
        if self.agent is None:
            return None
        timeout_s, is_submitted = self._wait.limit_s(phase), True
        if key is None or key != self._key:
            self.next_index += 1
            runs_plain = self.agent.runs_plain(phase)
            is_submitted = batch is not None and not runs_plain
            if batch is not None and is_submitted:
                is_forward_only = phase is Phase.RECOMPUTE and key is None
                answer_s = min(self.planned.settings.plan_timeout_s, max(timeout_s, _ANSWER_S))
                is_submitted = self.planned.submit(
                    self._index, batch, is_forward_only=is_forward_only, timeout_s=answer_s
                )
            self._key = key if is_submitted or runs_plain else None
            if not is_submitted:
                timeout_s = _ANSWER_S if self.planned.has_planner() else 0.0
        self._runs = True
        outcome = self.agent.begin_step(self._index, phase, plan_timeout_s=timeout_s)
        self._wait.begin(phase, outcome)
        if not is_submitted and timeout_s and Cause.LATE in outcome.causes:  # which is the same on all ranks
            self.planned.note_lost()
        return outcome

    def begin_in_place(self) -> None:
        """Collective over all ranks: begin a pass in which no expert may move; the pass before has ended."""
        assert self.agent is not None
        self.pause()
        self.agent.end_step()

    @property
    def _index(self) -> int:
        """The number of the last pass."""
        return self.next_index - 1

    def go_on_with_other_weights(self) -> None:
        """Run the micro-batches that follow in the last pass, of phase RECOMPUTE, with the weights that came since."""
        if self.agent is not None:
            self.agent.forget_copies()

    def pause(self) -> None:
        """Run the micro-batches that follow without the plan of the last pass, whose step stays open."""
        self._runs = False

    def end(self) -> None:
        """Collective over all ranks: end the last pass, after the optimizer stepped."""
        if self._runs:
            self._wait.mark()
        self.pause()
        self._key = None
        if self.agent is not None:
            self.agent.end_step()

    def forward_step(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs a micro-batch of the last pass, and tells the agent which one."""
        if self.agent is None or not self._runs:
            return run
        run_planned = self.agent.forward_step(run)

        def run_timed(*args: Any, **kwargs: Any) -> Any:
            output = run_planned(*args, **kwargs)
            self._wait.mark()
            return output

        return run_timed

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

        with replace_attribute(module, "get_forward_backward_func", get_forward_backward_func):
            yield

    @property
    def mover(self) -> Agent | None:
        """The agent if it may move experts. Without one, all that reads weights by place is right as it is."""
        return None if self.agent is None or self.agent.homes_stay else self.agent

    def ignoring_names(self) -> AbstractContextManager[None]:
        """Let the body read names of parameters, which it does not use."""
        return nullcontext() if self.mover is None else self.mover.ignoring_names()

    def at_original_places(self) -> AbstractContextManager[None]:
        """Collective over all ranks: have every expert at its original place in the body."""
        return nullcontext() if self.mover is None else self.mover.at_original_places()

    def read_at_original_places(self, weights: Iterable[Any]) -> Iterator[Any]:
        """Yield an export while every expert is at its original place. The first read and the end are collective."""
        with self.at_original_places():
            yield from weights

    def exporting(self) -> AbstractContextManager[Renamed]:
        """Collective over all ranks: export by place in the body; see `logical_export.exporting`."""
        if self.mover is None:
            return nullcontext(lambda weights, is_whole=True: iter(weights))
        return exporting(self.mover, self.layers)

    def export(self, weights: Iterable[tuple[str, Any]], *, is_whole: bool = True) -> Iterator[tuple[str, Any]]:
        """Yield an export with each expert under its own name. The first read is collective over all ranks."""
        if self.mover is None:
            return iter(weights)
        return logical_export(self.mover, self.layers, weights, is_whole=is_whole)

    @contextmanager
    def loading_by_place(self) -> Iterator[None]:
        """Collective over all ranks: let the body load weights by place, as they were before the first reorder."""
        if self.mover is None:
            yield
            return
        with self.mover.restoring(self.mover.original_order):
            yield
        self.mover.accept_weights()


def within(context: str, *names: str) -> Callable[[type[Any]], type[Any]]:
    """Return a decorator of a subclass of a framework's class: inherited methods run in a context of its `passes`.

    Args:
        context: the method of `BalancedPasses` that returns the context.
        names: the methods of the framework's class; a version of the framework may lack some.
    """

    def decorate(subclass: type[Any]) -> type[Any]:
        for name in filter(partial(hasattr, subclass), names):
            setattr(subclass, name, _within(context, subclass, name))
        return subclass

    return decorate


def _within(context: str, subclass: type[Any], name: str) -> Callable[..., Any]:
    @wraps(getattr(subclass, name))
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with getattr(self.passes, context)():
            return getattr(super(subclass, self), name)(*args, **kwargs)

    return method


@contextmanager
def replace_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute in the body."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
