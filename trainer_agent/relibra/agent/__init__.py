"""What lives inside a training process: fetches the step's plan and executes it without changing the mathematics.

In:   a built megatron-core model with its optimizer, and rank plans from the planner.
Out:  balanced MoE layers, realised loads reported back, weights under their logical names.

    session -> agreement -> placement, reorder -> cells -> layer (remap, replicate)
                            agent.py runs them in this order

`megatron` is the only module here that imports megatron-core, and is imported by `attach` alone.
"""

from relibra.agent.agent import Agent
from relibra.agent.attachment import attach
from relibra.agent.config import AgentConfig
from relibra.agent.plans.outcome import StepOutcome
from relibra.agent.plans.session import PlanSource, Session
from relibra.planning import Phase

__all__ = ["Agent", "AgentConfig", "Phase", "PlanSource", "Session", "StepOutcome", "attach"]
