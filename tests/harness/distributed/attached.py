"""Small networks with an agent that executes random plans."""

from collections.abc import Callable
from typing import Any

from harness.agent.emulated_memory import emulated
from harness.distributed.networks import MODEL, Trained
from harness.distributed.observed import Differences
from harness.distributed.plans import ScriptedPlans, random_plan
from relibra.agent import AgentConfig, attach
from relibra.agent.config import Transport
from relibra.planning import Cluster, StepPlan

M = 2
"""The micro-batches of a step."""


def attached(
    cluster: Cluster,
    answers: dict[int, StepPlan | None],
    *,
    collective_timeout_s: float = 600.0,
    transport: Transport = "process_group",
    host_copy: bool = False,
    reorder_buffer_bytes: int = 1 << 30,
    clock: Callable[[], float] | None = None,
    **options: Any,
) -> tuple[Trained, ScriptedPlans]:
    """Return a network whose agent gets these plans by step. With a clock, it measures whether they are faster."""
    trained, plans = Trained(cluster, **options), ScriptedPlans(answers)
    config = AgentConfig(
        planner_address="none:0",
        job_id="test",
        model=MODEL,
        cluster=cluster,
        plan_timeout_s=1.0,
        collective_timeout_s=collective_timeout_s,
        transport=transport,
        host_copy=host_copy,
        reorder_buffer_bytes=reorder_buffer_bytes,
        guard=clock is not None,
    )
    with emulated():
        trained.agent = attach(trained.ddp, trained.optimizer, config, plans=plans, clock=clock)
    return trained, plans


def plans_of(cluster: Cluster, steps: range, *, first_seed: int = 77, **options: Any) -> dict[int, StepPlan | None]:
    """Return another random plan of this rank for every step."""
    return {step: random_plan(first_seed + step, step, MODEL, cluster, M, **options) for step in steps}


def note_step(differences: Differences, plain: Trained, balanced: Trained, step: int, **options: Any) -> None:
    """Train both for one step, and compare losses, outputs, gradients, moments and weights."""
    want, got = plain.step(step, M, **options), balanced.step(step, M, **options)
    for kind in ("loss", "output", "dx", "grad"):
        differences.note(kind, got[kind], want[kind])
    differences.note("moments", balanced.moments(), plain.moments())
    differences.note("weights", balanced.weights(), plain.weights())
