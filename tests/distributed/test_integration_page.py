"""The examples of docs/integration/megatron.md and docs/quick-start.md run as they stand, without a planner (S5)."""

from harness.distributed.layout import ONE_RANK
from harness.distributed.on_ranks import IS_RANK, on_ranks
from harness.doc_blocks import python_of
from relibra.planning import Model

if IS_RANK:
    import torch

    from harness.distributed.networks import BATCH, HIDDEN, SEQUENCE, Trained
    from harness.distributed.observed import logged


@on_ranks(ONE_RANK)
def test_S5_the_example_of_the_integration_page_runs_as_it_stands(cluster):
    (example,) = python_of("docs/integration/megatron.md")
    trained, taken = Trained(cluster, num_moe_experts=8), []

    def forward_step(batches, model):
        taken.append(next(batches))
        return model(torch.randn(SEQUENCE, BATCH, HIDDEN)).float().square().mean()

    def train_one_step(forward_step):
        trained.ddp.zero_grad_buffer()
        batches = iter(range(2))
        for _ in range(2):
            forward_step(batches, trained.ddp).backward()
        trained.ddp.finish_grad_sync()
        trained.optimizer.step()

    names = {"model_chunks": [trained.ddp], "optimizer": trained.optimizer}
    exec(example, names | {"forward_step": forward_step, "train_one_step": train_one_step})
    assert taken == [0, 1] * 2
    assert "preprocess" not in vars(trained.network.moe[0]), "it is detached"


@on_ranks(ONE_RANK)
def test_S5_the_example_of_the_quick_start_trains_and_says_that_no_plan_comes(cluster):
    (example,) = [block for block in python_of("docs/quick-start.md") if "attach(" in block]
    for stands, runs in (("planner:7420", "127.0.0.1:1"), ("plan_timeout_s=30.0", "plan_timeout_s=0.2")):
        assert stands in example
        example = example.replace(stands, runs)
    trained = Trained(cluster, num_moe_experts=8)
    trained.ddp.zero_grad_buffer()
    names = {
        "model": Model(num_layers=2, num_experts=8, top_k=2),
        "cluster": cluster,
        "step": 0,
        "gpt": trained.ddp,
        "optimizer": trained.optimizer,
        "micro_batches": [torch.randn(SEQUENCE, BATCH, HIDDEN) for _ in range(2)],
        "forward": lambda gpt, batch: gpt(batch).float().square().mean(),
    }
    before = [parameter.detach().clone() for parameter in trained.network.parameters()]
    with logged() as messages:
        exec(example, names)
    names["agent"].detach()
    assert not all(map(torch.equal, before, trained.network.parameters()))
    assert any("no plan since step 0: it keeps its placement, without replicas" in each for each in messages())
