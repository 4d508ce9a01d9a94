"""Scenarios in which slime's own code backs up, switches and sends weights while experts move."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.distributed import state
from harness.distributed.gpt_job import GptJob
from harness.distributed.gpt_model import EXPERT
from harness.distributed.matrix import num_micro_batches
from harness.distributed.observed import Differences, equal, refusal
from harness.distributed.plans import ScriptedPlans, random_plan
from harness.distributed.slime_code import Actor
from relibra.agent import AgentConfig, Phase, attach
from relibra.planning import Cluster

STEPS = 3
TAGS = ("ref", "teacher", "old_actor", "rollout_actor")
Result = dict[str, Any]


def started(cluster: Cluster, *, sharded: bool) -> tuple[GptJob, Actor, dict[str, dict[str, Tensor]]]:
    """Return an attached job with backups of several models, as slime's `init` leaves them, and what is in them."""
    job = GptJob(cluster, sharded=sharded, grouped=True, clip_grad=0.0)
    by_step = {
        step: random_plan(70 + step, step, job.model, cluster, num_micro_batches(), replicate=False)
        for step in range(STEPS)
    }
    config = AgentConfig(planner_address="none:0", job_id="test", model=job.model, cluster=cluster, plan_timeout_s=1.0)
    actor = Actor(job.chunks, job.config, shared_folder())
    actor.backups.backup("actor")
    expected = {"actor": weights(job)}
    for number, tag in enumerate(TAGS, 1):  # other checkpoints pass through the modules
        with torch.no_grad():
            for parameter in job.models[0].parameters():
                parameter.mul_(1 + number / 64)
        actor.backups.backup(tag)
        expected[tag] = weights(job)
    actor.switch("actor")
    job.optimizer.reload_model_params()
    job.agent = attach(job.chunks, job.optimizer, config, plans=ScriptedPlans(by_step))
    return job, actor, expected


def shared_folder() -> Path:
    """Return a new folder, the same one on all ranks, with an empty Hugging Face checkpoint in it."""
    shared: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    folder = Path(shared[0])
    (folder / "hf").mkdir(exist_ok=True)
    return folder


def weights(job: GptJob) -> dict[str, Tensor]:
    state.gather_parameters(job.chunks)
    return state.assembled(state.weights(job.named_logical()))


def is_sent(sent: dict[str, Tensor], of_experts: dict[str, Tensor]) -> bool:
    """Return whether slime sent every expert under its own number."""
    want: dict[str, Tensor] = {}
    for key, flat in of_experts.items():
        name = key.split("/")[1]
        match = EXPERT.search(name)
        if match is None or ".experts." not in name:
            continue
        layer, expert, is_first = name.split(".")[2], match[2], "linear_fc1" in name
        at = f"model.layers.{layer}.mlp.experts.{expert}"
        if is_first:
            gate, up = flat.chunk(2)
            want |= {f"{at}.gate_proj.weight": gate, f"{at}.up_proj.weight": up}
        else:
            want[f"{at}.down_proj.weight"] = flat
    return equal({name: each.float().flatten() for name, each in sent.items()}, want)


def followed(cluster: Cluster, *, sharded: bool = False) -> Result:
    """Let slime run as it does without relibra, over reorders, with its backups followed and its update decorated."""
    job, actor, expected = started(cluster, sharded=sharded)
    plain = GptJob(cluster, sharded=sharded, grouped=True, clip_grad=0.0)
    plain.replay_without_agent()
    agent = job.agent
    assert agent is not None
    agent.follow(actor.backups)
    send_live = agent.at_original_places()(actor.send_live)
    send_files = agent.at_original_places()(actor.send_files)
    right: dict[str, bool] = {}
    moved = []
    for step in range(STEPS):
        moved.append(agent.begin_step(step, Phase.RECOMPUTE).num_moved_experts)
        for tag in ("ref", "teacher", "old_actor", "actor"):
            actor.switch(tag)
            right[f"{tag} {step}"] = equal(weights(job), expected[tag])
        agent.begin_step(step, Phase.UPDATE)
        job.step(step, num_micro_batches())
        plain.step(step, num_micro_batches())
        agent.end_step()
        actor.backups.backup("actor")
        expected["actor"] = weights(job)
        sent = send_live()
        if dist.get_rank() == 0:
            right[f"sent {step}"] = is_sent(sent, expected["actor"])
        for is_routed in (False, True):
            from_backup = actor.send_backup(is_routed=is_routed)
            if dist.get_rank() % 2 == 0:
                right[f"sent from backup {step}, routed {is_routed}"] = is_sent(from_backup, expected["actor"])
        right[f"sent through files {step}"] = is_sent(send_files(), expected["actor"])
        actor.backups.copy(src_tag="rollout_actor", dst_tag="old_actor")
        actor.backups.backup("rollout_actor")
        expected |= {"old_actor": expected["rollout_actor"], "rollout_actor": expected["actor"]}
    differences = Differences()
    differences.note("weights", weights(job), weights(plain))
    agent.detach()
    return {"moved": moved, "right": right, "difference": differences.of}


def stock(cluster: Cluster, *, sharded: bool = False) -> Result:
    """Let slime run with an attached agent that nobody told of its backups. What it does wrong must be refused."""
    job, actor, expected = started(cluster, sharded=sharded)
    agent = job.agent
    assert agent is not None
    moved = 0
    for step in range(2):
        moved = agent.begin_step(step, Phase.UPDATE).num_moved_experts
        job.step(step, num_micro_batches())
        agent.end_step()
    trained = weights(job)
    actions: dict[str, Callable[[], object]] = {
        "switch": lambda: actor.switch("ref"),
        "backup": lambda: actor.backups.backup("actor"),
        "update from the modules": actor.send_live,
        "update through files": actor.send_files,
        "new names": actor.colocated_iterator,
    }
    messages = {name: refusal(action) for name, action in actions.items()}
    untouched = equal(weights(job), trained)
    from_backup = actor.send_backup(is_routed=True)
    old = dist.get_rank() % 2 != 0 or is_sent(from_backup, expected["actor"])
    agent.begin_step(2, Phase.UPDATE)
    agent.detach()
    at_home = {name: refusal(action) for name, action in actions.items()}
    return {"moved": moved, "messages": messages, "right": {"untouched": untouched, "old": old}, "at_home": at_home}


SCENARIOS: dict[str, Callable[..., Result]] = {"followed": followed, "stock": stock}
