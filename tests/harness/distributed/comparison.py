"""A GPT that trains under random plans, compared with one that trains under plain megatron-core."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from megatron.core import parallel_state

from harness.agent.emulated_memory import emulated
from harness.distributed.gpt_job import GptJob
from harness.distributed.observed import TOLERANCE, Differences, gathered
from harness.distributed.plans import ScriptedPlans, random_plan
from relibra.agent import AgentConfig, Phase, StepOutcome, attach
from relibra.agent.config import Transport
from relibra.planning import Cluster, ExecutionReport

STEPS = 2
KINDS = {"loss", "grad", "grad_norm", "moments", "weights", "expert_bias"}
GROUPED: dict[str, Any] = {"grouped": True}
FUSED: dict[str, Any] = {"gradient_accumulation_fusion": True}
BIAS: dict[str, Any] = {"add_bias_linear": True, "moe_shared_expert_intermediate_size": None}
EXPERTS = {"grouped": GROUPED, "fused": FUSED | BIAS, "grouped_fused": GROUPED | FUSED | BIAS}
"""Kinds of experts other than sequential ones with gradients from autograd."""


def num_micro_batches() -> int:
    """Return two micro-batches to accumulate per pipeline stage, so that several are in flight in a pipeline."""
    return 2 * parallel_state.get_pipeline_model_parallel_world_size()


def balance(
    job: GptJob,
    cluster: Cluster,
    *,
    plan: dict[str, Any] | None = None,
    collective_timeout_s: float = 600.0,
    transport: Transport = "process_group",
    num_steps: int = STEPS,
    homes_stay: bool = False,
    sees_optimizer: bool = True,
) -> ScriptedPlans:
    """Attach an agent to a GPT, which gets another random plan in every step."""
    by_step = {
        step: random_plan(33 + step, step, job.model, cluster, num_micro_batches(), **(plan or {}))
        for step in range(num_steps)
    }
    plans = ScriptedPlans(by_step)
    config = AgentConfig(
        planner_address="none:0",
        job_id="test",
        model=job.model,
        cluster=cluster,
        plan_timeout_s=1.0,
        collective_timeout_s=collective_timeout_s,
        transport=transport,
        homes_stay=homes_stay,
        guard=False,
    )
    with emulated():
        job.agent = attach(job.chunks, job.optimizer if sees_optimizer else None, config, plans=plans)
    return plans


_BALANCING = {"plan", "collective_timeout_s", "transport", "num_steps", "homes_stay", "sees_optimizer"}


def balanced_job(cluster: Cluster, **options: Any) -> tuple[GptJob, ScriptedPlans]:
    """Return a GPT with an agent; the options are those of `balance` and of `GptJob`."""
    job = GptJob(cluster, **{name: value for name, value in options.items() if name not in _BALANCING})
    return job, balance(job, cluster, **{name: options[name] for name in options.keys() & _BALANCING})


@functools.cache
def reference(
    cluster: Cluster, *, sharded: bool, bf16: bool, split: bool, **options: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Train plainly, without recomputation, as it changes no result. Return every step, and the last state."""
    plain = GptJob(cluster, sharded=sharded, bf16=bf16, **options)
    plain.replay_without_agent()
    return [plain.step(step, num_micro_batches(), split=split) for step in range(STEPS)], plain.state()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What the balanced job did on this rank, and how far it is from the plain one."""

    worst: dict[str, float]
    """The largest relative differences over all ranks."""
    outcomes: list[StepOutcome]
    reports: list[ExecutionReport]
    """One per step, or none on a rank for which another one reports."""
    is_shared_within_a_parameter: bool


def compare(
    cluster: Cluster, *, sharded: bool, bf16: bool, experts: dict[str, Any] | None = None, **options: Any
) -> Comparison:
    """Compare balanced training, with another random plan in every step, to plain training with equal experts."""
    steps, final = reference(cluster, sharded=sharded, bf16=bf16, split=False, **(experts or {}))
    balanced, plans = balanced_job(cluster, sharded=sharded, bf16=bf16, **(experts or {}), **options)
    agent = balanced.agent
    assert agent is not None
    differences, outcomes = Differences(), []
    for step in range(STEPS):
        outcomes.append(agent.begin_step(step, Phase.UPDATE))
        got = balanced.step(step, num_micro_batches())
        for kind, want in steps[step].items():
            differences.note(kind, got[kind], want)
        agent.end_step()
    got = balanced.state()
    for kind, want in final.items():
        differences.note(kind, got[kind], want)
    is_shared = balanced.is_shared_within_a_parameter()
    agent.detach()
    return Comparison(
        worst=differences.worst(), outcomes=outcomes, reports=plans.reports, is_shared_within_a_parameter=is_shared
    )


def rounding(cluster: Cluster, *, sharded: bool = False, experts: dict[str, Any] | None = None) -> dict[str, float]:
    """Return the difference between plain bf16 training and the same with every sample as its own micro-batch."""
    differences = Differences()
    (want, want_state), (got, got_state) = (
        reference(cluster, sharded=sharded, bf16=True, split=split, **(experts or {})) for split in (False, True)
    )
    for of_want, of_got in [*zip(want, got, strict=True), (want_state, got_state)]:
        for kind in of_want.keys() - {"loss"}:
            differences.note(kind, of_got[kind], of_want[kind])
    return differences.worst()


def assert_active(got: Comparison, *, tokens_per_rank: int = 16, drops: bool = False) -> None:
    """Assert that every step applied its plan, moved experts and sent replicas, and that reports are complete."""
    applied = [str(outcome.applied) for outcome in got.outcomes]
    assert len(applied) == STEPS
    assert "None" not in applied
    assert min(outcome.num_moved_experts for outcome in got.outcomes) > 0
    assert all(map(math.isfinite, got.worst.values()))
    assert all(other == applied for other in gathered(applied))
    everyone = gathered(got.reports)
    assert any(everyone)
    for reports in zip(*filter(None, everyone), strict=True):
        assert sum(report.replica_sent_bytes for report in reports) > 0
        assert sum(report.reorder_sent_bytes for report in reports) > 0
        assert min(min(report.reorder_s, report.replica_wait_s) for report in reports) > 0
        assert all(report.duration_s > report.replica_wait_s for report in reports)
        # Each process is spoken for once, also those of later stages and with other parts of the experts.
        assert sum(report.num_processes for report in reports) == len(everyone)
        load_ML = sum(report.realised_load_ML for report in reports)
        assert load_ML.shape[1] == 3
        # Every rank of a stage sends its tokens to 2 experts each, and only the first of two stages reports.
        whole = 2 * tokens_per_rank * len(reports)
        assert (load_ML < whole).all() if drops else (load_ML == whole).all()


def assert_equal(got: Comparison) -> None:
    """Assert that training in fp32 was active and that of plain megatron-core."""
    assert got.worst.keys() == KINDS
    assert max(got.worst.values()) <= TOLERANCE, got.worst


def assert_rounded(got: Comparison, of_plain: dict[str, float], *, share_of_norm: float = 0.25) -> None:
    """Assert that differences exist, are well below those of two plain runs, and leave the choice of experts equal.

    The norm of the gradients is a single number, whose rounding is a matter of chance.
    """
    worst = got.worst
    assert worst.keys() == of_plain.keys() | {"loss"}
    for kind in ("grad", "grad_norm", "moments", "weights"):
        share = share_of_norm if kind == "grad_norm" else 0.25
        assert 0 < worst[kind] <= share * of_plain[kind], (kind, worst[kind], of_plain[kind])
    assert worst["expert_bias"] == of_plain["expert_bias"] == 0
    assert worst["loss"] <= 2e-3


def noticed(action: Callable[[], object]) -> str:
    """Return the message of the assertion that fails in an action, or `nothing`."""
    try:
        action()
    except AssertionError as error:
        return str(error)
    return "nothing"
