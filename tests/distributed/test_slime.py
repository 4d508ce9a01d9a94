"""slime's own code backs up, switches and sends weights while experts move: right, or refused by name (S9).

Every test has ranks of its own, because slime replaces functions of torch.distributed in its process.
"""

import pytest

from harness import frameworks
from harness.distributed.layout import EP2_EDP2, EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import torch
    import torch.distributed as dist

    from harness.distributed import state
    from harness.distributed.comparison import balance, num_micro_batches
    from harness.distributed.gpt_job import GptJob
    from harness.distributed.gpt_model import EXPERT
    from harness.distributed.observed import NOT_REFUSED, Differences, equal, refusal
    from harness.distributed.slime_code import Actor
    from harness.distributed.slime_job import shared_folder
    from relibra.agent import Phase

pytestmark = pytest.mark.skipif(frameworks.checkout("slime") is None, reason=frameworks.reason("slime"))

STEPS = 3
TAGS = ("ref", "teacher", "old_actor", "rollout_actor")


def options_of(cluster):
    return {"sharded": cluster.num_ep_groups > 1, "grouped": True, "clip_grad": 0.0}


def started(cluster):
    """Return an attached job with backups of several models, as slime's `init` leaves them, and what is in them."""
    job = GptJob(cluster, **options_of(cluster))
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
    balance(job, cluster, plan={"replicate": False}, num_steps=STEPS)
    return job, actor, expected


def weights(job):
    state.gather_parameters(job.chunks)
    return state.assembled(state.weights(job.named_logical()))


def is_sent(sent, of_experts):
    """Return whether slime sent every expert under its own number."""
    want = {}
    for key, flat in of_experts.items():
        name = key.split("/")[1]
        match = EXPERT.search(name)
        if match is None or ".experts." not in name:
            continue
        at = f"model.layers.{name.split('.')[2]}.mlp.experts.{match[2]}"
        if "linear_fc1" in name:
            gate, up = flat.chunk(2)
            want |= {f"{at}.gate_proj.weight": gate, f"{at}.up_proj.weight": up}
        else:
            want[f"{at}.down_proj.weight"] = flat
    return equal({name: each.float().flatten() for name, each in sent.items()}, want)


@on_ranks(EP4, EP2_EDP2, alone=True)
def test_S9_slime_switches_and_sends_the_right_weights_over_reorders(cluster):
    """slime runs as it does without relibra, with its backups followed and its update decorated."""
    job, actor, expected = started(cluster)
    plain = GptJob(cluster, **options_of(cluster))
    plain.replay_without_agent()
    agent, rank = job.agent, dist.get_rank()
    agent.follow(actor.backups)
    send_live = agent.at_original_places()(actor.send_live)
    send_files = agent.at_original_places()(actor.send_files)
    for step in range(STEPS):
        assert agent.begin_step(step, Phase.RECOMPUTE).num_moved_experts > 0
        for tag in ("ref", "teacher", "old_actor", "actor"):
            actor.switch(tag)
            assert equal(weights(job), expected[tag]), (tag, step)
        agent.begin_step(step, Phase.UPDATE)
        job.step(step, num_micro_batches())
        plain.step(step, num_micro_batches())
        agent.end_step()
        actor.backups.backup("actor")
        expected["actor"] = weights(job)
        sent = send_live()
        assert rank != 0 or is_sent(sent, expected["actor"]), step
        for is_routed in (False, True):
            from_backup = actor.send_backup(is_routed=is_routed)
            assert rank % 2 != 0 or is_sent(from_backup, expected["actor"]), (step, is_routed)
        assert is_sent(send_files(), expected["actor"]), step
        actor.backups.copy(src_tag="rollout_actor", dst_tag="old_actor")
        actor.backups.backup("rollout_actor")
        expected |= {"old_actor": expected["rollout_actor"], "rollout_actor": expected["actor"]}
    differences = Differences()
    differences.note("weights", weights(job), weights(plain))
    agent.detach()
    assert differences.of["weights"] <= 1e-5


@on_ranks(EP4, EP2_EDP2, alone=True)
def test_S9_slime_without_a_word_of_relibra_is_refused_before_weights_change_or_leave(cluster):
    """Nobody told the attached agent of slime's backups."""
    job, actor, expected = started(cluster)
    agent = job.agent
    for step in range(2):
        num_moved_experts = agent.begin_step(step, Phase.UPDATE).num_moved_experts
        job.step(step, num_micro_batches())
        agent.end_step()
    assert num_moved_experts > 0
    trained = weights(job)
    actions = {
        "switch": lambda: actor.switch("ref"),
        "backup": lambda: actor.backups.backup("actor"),
        "update from the modules": actor.send_live,
        "update through files": actor.send_files,
        "new names": actor.colocated_iterator,
    }
    for way, action in actions.items():
        text = refusal(action)
        assert text.startswith("Unsupported: named_parameters() of "), way
        assert "called in slime.backends.megatron_utils.update_weight.common" in text, way
        assert "agent.at_original_places()" in text, way
    assert equal(weights(job), trained)
    from_backup = actor.send_backup(is_routed=True)
    assert dist.get_rank() % 2 != 0 or is_sent(from_backup, expected["actor"])
    agent.begin_step(2, Phase.UPDATE)
    agent.detach()
    assert {way: refusal(action) for way, action in actions.items()} == dict.fromkeys(actions, NOT_REFUSED)
