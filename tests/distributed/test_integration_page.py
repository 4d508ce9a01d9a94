"""The example of docs/integrations/megatron.md runs as it stands, without a planner (S5)."""

from harness.distributed.layout import ONE_RANK
from harness.distributed.on_ranks import IS_RANK, on_ranks
from harness.doc_blocks import python_of

if IS_RANK:
    import torch

    from harness.distributed.networks import BATCH, HIDDEN, SEQUENCE, Trained


@on_ranks(ONE_RANK)
def test_S5_the_example_of_the_integration_page_runs_as_it_stands(cluster):
    (example,) = python_of("docs/integrations/megatron.md")
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
