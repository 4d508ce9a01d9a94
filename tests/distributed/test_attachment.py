"""Attaching, detaching, and forwards outside a micro-batch."""

from harness.distributed.layout import EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import re

    import numpy as np
    import torch
    import torch.distributed as dist
    from megatron.core import tensor_parallel

    from harness.distributed.attached import M, attached, plans_of
    from harness.distributed.networks import BATCH, HIDDEN, MODEL, SEQUENCE, Trained, routing
    from harness.distributed.observed import Differences, equal, refusal
    from relibra.agent import Phase


def named_as_converters_do(trained):
    """Yield names as frameworks' converters make them: the place from rank and position, its expert from the agent."""
    first = trained.agent.ep_rank * trained.network.moe[0].num_local_experts
    with trained.agent.copying() as order:
        for name, parameter in trained.network.named_parameters():
            place = re.fullmatch(r"(moe\.(\d+)\.experts\.local_experts\.)(\d+)(.*)", name)
            if place:
                before, layer, position, after = place.groups()
                name = f"{before}{order.expert_of_place_LE[int(layer), first + int(position)]}{after}"
            yield name, parameter


@on_ranks(EP4)
def test_S5_detaching_leaves_the_plain_model_bitwise_and_places_have_logical_names(cluster):
    """Converters of frameworks need the names after a reorder."""
    plain, untouched = Trained(cluster, clip_grad=0.0), Trained(cluster, clip_grad=0.0)
    answers = plans_of(cluster, range(2), first_seed=40, replicate=False)
    balanced, _ = attached(cluster, answers, clip_grad=0.0)
    agent, original = balanced.agent, cluster.identity_placement(MODEL)
    for step in range(2):
        agent.begin_step(step, Phase.UPDATE)
        balanced.step(step, M)
        plain.step(step, M)
        agent.end_step()
    assert not np.array_equal(agent.home_rank_LE, original)
    named = {name: id(parameter) for name, parameter in agent.logical_named_parameters()}
    assert {name: id(parameter) for name, parameter in named_as_converters_do(balanced)} == named
    agent.detach()
    assert np.array_equal(agent.home_rank_LE, original)
    balanced.agent = None
    assert equal(balanced.weights(), plain.weights())
    assert equal(balanced.moments(), plain.moments())
    got, want = balanced.step(2, M), plain.step(2, M)
    assert got["loss"] == want["loss"]
    assert all(map(torch.equal, got["dx"], want["dx"]))
    for layer, other in zip(balanced.network.moe, untouched.network.moe, strict=True):
        assert "preprocess" not in vars(layer)
        assert "forward" not in vars(layer.experts)
        assert layer.token_dispatcher.num_experts == other.token_dispatcher.num_experts
    assert tensor_parallel.checkpoint.__module__.startswith("megatron.")


@on_ranks(EP4)
def test_S5_a_training_forward_outside_a_micro_batch_is_refused_if_it_would_lose_replicas_or_routing(cluster):
    """All other forwards are those of the plain model."""
    plain, (balanced, _) = Trained(cluster), attached(cluster, plans_of(cluster, range(1)))
    agent, differences = balanced.agent, Differences()
    hidden = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=torch.Generator().manual_seed(3))

    def compare():
        for trained in (plain, balanced):
            trained.set_routing(routing(0, 0, dist.get_rank()))
        differences.note("output", [balanced.ddp(hidden).detach()], [plain.ddp(hidden).detach()])

    def compare_in_eval():
        for trained in (plain, balanced):
            trained.network.eval()
        compare()
        for trained in (plain, balanced):
            trained.network.train()

    agent.begin_step(0, Phase.UPDATE)
    assert "outside `agent.micro_batch(i)` while the step has replicas" in refusal(lambda: balanced.ddp(hidden))
    compare_in_eval()
    agent.end_step()
    compare()
    outcome = agent.begin_step(1, Phase.UPDATE)
    assert outcome.applied is None
    assert outcome.kept is not None
    assert "outside `agent.micro_batch(i)` while the step has replicas" in refusal(lambda: balanced.ddp(hidden))
    agent.detach()

    plain, (balanced, _) = Trained(cluster), attached(cluster, plans_of(cluster, range(1), replicate=False))
    agent = balanced.agent
    agent.begin_step(1, Phase.UPDATE)
    compare()
    agent.set_routing(0, routing(1, 0, dist.get_rank()))
    assert "outside `agent.micro_batch(i)` while the step has routing" in refusal(lambda: balanced.ddp(hidden))
    compare_in_eval()
    agent.end_step()
    compare()
    with agent.micro_batch(M + 5):
        compare()
    agent.detach()
    assert differences.of["output"] <= 1e-6
