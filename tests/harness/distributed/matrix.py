"""Scenarios that train a GPT in every common way, plain and balanced side by side."""

import functools
from collections.abc import Callable
from typing import Any

from megatron.core import parallel_state

from harness.agent.emulated_memory import emulated
from harness.distributed import optimizers
from harness.distributed.gpt_job import GptJob
from harness.distributed.gpt_model import RECOMPUTE
from harness.distributed.plans import ScriptedPlans, random_plans
from harness.distributed.scenarios import Differences
from harness.distributed.ways import pairs, ways
from relibra.agent import AgentConfig, Phase, attach
from relibra.agent.config import Transport
from relibra.errors import Unsupported
from relibra.planning import Cluster

STEPS = 2
Result = dict[str, Any]


def num_micro_batches() -> int:
    """Return two micro-batches to accumulate per pipeline stage, so that several are in flight in a pipeline."""
    return 2 * parallel_state.get_pipeline_model_parallel_world_size()


def balanced_job(
    cluster: Cluster,
    *,
    plan: dict[str, Any] | None = None,
    collective_timeout_s: float = 600.0,
    transport: Transport = "process_group",
    num_steps: int = STEPS,
    **options: Any,
) -> tuple[GptJob, ScriptedPlans]:
    job = GptJob(cluster, **options)
    ep_rank = parallel_state.get_expert_model_parallel_rank()
    by_step = {
        step: random_plans(33 + step, step, job.model, cluster, num_micro_batches(), **(plan or {}))[ep_rank]
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
    )
    with emulated():
        job.agent = attach(job.chunks, job.optimizer, config, plans=plans)
    return job, plans


@functools.cache
def reference(*, sharded: bool, bf16: bool, split: bool, **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Train plainly, without recomputation, as it changes no result. Return every step, and the last state."""
    plain = GptJob(*_cluster, sharded=sharded, bf16=bf16, **options)
    plain.replay_without_agent()
    return [plain.step(step, num_micro_batches(), split=split) for step in range(STEPS)], plain.state()


_cluster: list[Cluster] = []


def compare(
    cluster: Cluster, *, sharded: bool, bf16: bool, experts: dict[str, Any] | None = None, **options: Any
) -> Result:
    """Compare balanced training, with another random plan in every step, to plain training with equal experts."""
    _cluster[:] = [cluster]
    steps, final = reference(sharded=sharded, bf16=bf16, split=False, **(experts or {}))
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
    shared = balanced.is_shared_within_a_parameter()
    agent.detach()
    return {
        "difference": differences.of,
        "applied": [str(outcome.applied) for outcome in outcomes],
        "moved_experts": [outcome.num_moved_experts for outcome in outcomes],
        "replica_sent_bytes": [report.replica_sent_bytes for report in plans.reports],
        "reorder_sent_bytes": [report.reorder_sent_bytes for report in plans.reports],
        "replica_wait_s": [report.replica_wait_s for report in plans.reports],
        "reorder_s": [report.reorder_s for report in plans.reports],
        "duration_s": [report.duration_s for report in plans.reports],
        "num_processes": [report.num_processes for report in plans.reports],
        "is_shared_within_a_parameter": shared,
        "realised_load": [report.realised_load_ML.tolist() for report in plans.reports],
    }


def compare_with(cluster: Cluster, *, kind: str, experts: dict[str, Any], **options: Any) -> Result:
    return compare(cluster, experts=experts | {"kind": kind}, **options)


def shared_scales(cluster: Cluster, **options: Any) -> Result:
    """Attach to a job in which two ranks share the state of an expert, each with a scale for its part."""
    try:
        balanced_job(cluster, sharded=True, bf16=True, **options)
    except Unsupported as error:
        return {"message": str(error)}
    return {"message": "not refused"}


def rounding(cluster: Cluster, *, sharded: bool = False, experts: dict[str, Any] | None = None) -> Result:
    """Return the difference between plain bf16 training and the same with every sample as its own micro-batch."""
    _cluster[:] = [cluster]
    differences = Differences()
    (want, want_state), (got, got_state) = (
        reference(sharded=sharded, bf16=True, split=split, **(experts or {})) for split in (False, True)
    )
    for of_want, of_got in [*zip(want, got, strict=True), (want_state, got_state)]:
        for kind in of_want:
            if kind != "loss":
                differences.note(kind, of_got[kind], of_want[kind])
    return {"difference": differences.of}


def case(cluster: Cluster, name: str) -> Result:
    recompute, optimizer, dtype = name.split("-")
    return compare(cluster, sharded=optimizer == "sharded", bf16=dtype == "bf16", **RECOMPUTE[recompute])


def scenarios(layout: str) -> dict[str, Callable[[Cluster], Result]]:
    """Return the scenarios of a layout: all its ways, and the rounding of each of its optimizers with bf16."""
    found: dict[str, Callable[[Cluster], Result]] = {
        name: functools.partial(case, name=name) for dtype in ("fp32", "bf16") for name in ways(layout, dtype)
    }
    for optimizer, dtype in pairs(layout):
        if dtype == "bf16":
            found[f"rounding-{optimizer}"] = functools.partial(rounding, sharded=optimizer == "sharded")
    return found


TENSOR_SCENARIOS: dict[str, Callable[[Cluster], Result]] = {
    name: functools.partial(case, name=name) for name in ("none-plain-fp32", "full-sharded-fp32")
}
GROUPED: dict[str, Any] = {"grouped": True}
FUSED: dict[str, Any] = {"gradient_accumulation_fusion": True}
BIAS: dict[str, Any] = {"add_bias_linear": True, "moe_shared_expert_intermediate_size": None}
EXPERTS = {"grouped": GROUPED, "fused": FUSED | BIAS, "grouped_fused": GROUPED | FUSED | BIAS}
"""Kinds of experts other than sequential ones with gradients from autograd."""
EXPERTS_SCENARIOS: dict[str, Callable[[Cluster], Result]] = {
    f"{experts}-{recompute}-{optimizer}": functools.partial(
        compare, sharded=optimizer == "sharded", bf16=False, experts=EXPERTS[experts], **RECOMPUTE[recompute]
    )
    for experts in EXPERTS
    for recompute, optimizer in (("none", "plain"), ("full", "sharded"))
}
IN_PRODUCTION: dict[str, Any] = {"experts": EXPERTS["grouped_fused"], "sharded": True}
EXPERTS_SCENARIOS |= {
    "grouped_fused-full-sharded-bf16": functools.partial(compare, bf16=True, **IN_PRODUCTION, **RECOMPUTE["full"]),
    "grouped_fused-rounding": functools.partial(rounding, **IN_PRODUCTION),
}
EXPERTS_SCENARIOS |= {
    kind: functools.partial(
        optimizers.trained_with, scenario=compare_with, kind=kind, bf16=True, **IN_PRODUCTION, **RECOMPUTE["full"]
    )
    for kind in ("remainders", "half_offloaded_beside_fused", "offloaded")
}
"""Kinds of optimizers, with what runs in production."""
EXPERTS_SCENARIOS["shared_scales"] = functools.partial(optimizers.trained_with, scenario=shared_scales, kind="fp16")
