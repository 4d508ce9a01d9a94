"""`balance` in a loop of one's own: what it finds out, and what its page says of passes whose routing is known."""

from harness.distributed.layout import EP2, EP2_PP2
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from types import SimpleNamespace

    import pytest
    import torch
    import torch.distributed as dist

    from harness.distributed.gpt_job import GptJob
    from harness.distributed.real_planner import real_planner
    from harness.doc_blocks import python_of
    from harness.engine_payloads import all_layers, routes
    from relibra.errors import InvalidInput
    from relibra.integrations.megatron import balance
    from relibra.plugins.own_loop import layers_of


@on_ranks(EP2_PP2)
def test_S5_the_first_pass_is_planned_from_the_batch_of_the_page_and_trains_as_plain_megatron(cluster):
    (example,) = python_of("docs/integrations/plain-megatron.md")
    plain, trained = GptJob(cluster), GptJob(cluster)
    plain.replay_without_agent()
    with real_planner() as (address, _):
        job = balance(trained.chunks, trained.optimizer, planner=address, job="own-loop", guard=False)
        assert job.layers.is_moe == (True, False, True, True), "of both pipeline stages"
        assert job.layers.num_experts == trained.model.num_experts
        rows = [routes(seed, 12, job.layers) for seed in range(4)]
        names = {"job": job, "payloads": [all_layers(each, job.layers, "int32") for each in rows]}
        exec(example, names)
        assert names["outcome"].applied is not None, names["outcome"].reason
        assert names["outcome"].num_replicas > 0
        trained.agent = job.agent
        want, got = plain.step(0, 2), trained.step(0, 2)
        assert got["loss"] == pytest.approx(want["loss"], rel=1e-5)
        job.end()
        job.close()
        dist.barrier()
    assert job.agent is None


@on_ranks(EP2)
def test_a_model_without_experts_is_refused_by_name(cluster):
    dense = torch.nn.Linear(1, 1)
    dense.config = SimpleNamespace(num_moe_experts=None, moe_router_topk=2, num_layers=4)
    with pytest.raises(InvalidInput, match="num_experts"):
        layers_of([dense])
