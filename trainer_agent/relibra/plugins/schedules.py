"""Megatron's schedules, told to the agent: which micro-batch of a pass runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from relibra.agent import Agent


@contextmanager
def telling_micro_batches(module: Any, agent: Agent) -> Iterator[None]:
    """Tell the agent about every micro-batch that a framework runs in the body, under an open step.

    Args:
        module: the module of the framework that calls megatron's `get_forward_backward_func`, by this name.
        agent: the agent.
    """
    schedule_of = module.get_forward_backward_func

    def get_forward_backward_func(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        schedule = schedule_of(*args, **kwargs)

        def run(*, forward_step_func: Callable[..., Any], **of_schedule: Any) -> Any:
            return schedule(forward_step_func=agent.forward_step(forward_step_func), **of_schedule)

        return run

    module.get_forward_backward_func = get_forward_backward_func
    try:
        yield
    finally:
        module.get_forward_backward_func = schedule_of
