"""The agent inside a training process: it fetches the step's plan and executes it without changing the mathematics.

In:   a built megatron-core model with its optimizer, and rank plans from the planner.
Out:  balanced MoE layers, reports of the realised loads, and weights under their logical names.

    session -> agreement -> placement, reorder -> cells -> layer (remap, replicate)
                            `Agent` runs them in this order

Only `megatron` imports megatron-core, and only `attach` imports `megatron`. The names below are loaded on first use, so
that `refusals` and `settings` can be imported where torch is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relibra.agent.agent import Agent
    from relibra.agent.attachment import attach
    from relibra.agent.config import AgentConfig
    from relibra.agent.expert_times import ExpertTimes
    from relibra.agent.link_rates import LinkRates
    from relibra.agent.plans.outcome import StepOutcome
    from relibra.agent.plans.plan_source import PlanAnswer, PlanSource
    from relibra.agent.plans.session import Session
    from relibra.agent.plans.shared_attempt import shared_attempt
    from relibra.planning import Phase

__all__ = [
    "Agent",
    "AgentConfig",
    "ExpertTimes",
    "LinkRates",
    "Phase",
    "PlanAnswer",
    "PlanSource",
    "Session",
    "StepOutcome",
    "attach",
    "shared_attempt",
]

_HOMES = {
    "Agent": "relibra.agent.agent",
    "AgentConfig": "relibra.agent.config",
    "ExpertTimes": "relibra.agent.expert_times",
    "LinkRates": "relibra.agent.link_rates",
    "Phase": "relibra.planning",
    "PlanAnswer": "relibra.agent.plans.plan_source",
    "PlanSource": "relibra.agent.plans.plan_source",
    "Session": "relibra.agent.plans.session",
    "StepOutcome": "relibra.agent.plans.outcome",
    "attach": "relibra.agent.attachment",
    "shared_attempt": "relibra.agent.plans.shared_attempt",
}
"""The module of each public name."""


def __getattr__(name: str) -> Any:
    """Return a public name, from its own module.

    Raises:
        AttributeError: there is no such name.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the names of the module, with those that were not loaded yet."""
    return sorted({*globals(), *__all__})
