"""The agent inside a training process: it fetches the step's plan and executes it without changing the mathematics.

In:   a built megatron-core model with its optimizer, and rank plans from the planner.
Out:  balanced MoE layers, reports of the realised loads, and weights under their logical names.

    session -> agreement -> placement, reorder -> cells -> layer (remap, replicate)
                            `Agent` runs them in this order

Only `megatron` imports megatron-core, and only `attach` imports `megatron`.
"""

from relibra.agent.agent import Agent
from relibra.agent.attachment import attach
from relibra.agent.config import AgentConfig
from relibra.agent.plans.outcome import StepOutcome
from relibra.agent.plans.session import PlanAnswer, PlanSource, Session
from relibra.agent.plans.trainer_group import shared_attempt
from relibra.planning import Phase

__all__ = [
    "Agent",
    "AgentConfig",
    "Phase",
    "PlanAnswer",
    "PlanSource",
    "Session",
    "StepOutcome",
    "attach",
    "shared_attempt",
]
