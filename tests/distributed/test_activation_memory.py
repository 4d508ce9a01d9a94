"""What autograd keeps for the tokens of experts is what the model of memory says (M1)."""

import pytest

from harness.distributed.layout import EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import dataclasses
    import functools
    import logging

    import torch
    import torch.distributed as dist

    from harness.distributed.attached import attached, plans_of
    from harness.distributed.networks import Trained, routing
    from relibra.agent import Phase
    from relibra.plugins.activation_memory import bytes_per_copy

    class Lines(logging.Handler):
        """Keeps the lines of a log."""

        def __init__(self):
            super().__init__(logging.WARNING)
            self.lines = []

        def emit(self, record):
            self.lines.append(record.getMessage())

    def kept_bytes(trained, micro_batch):
        """Return the bytes that autograd keeps of the experts in a forward, and the token copies that they compute."""
        parameters = {each.untyped_storage().data_ptr() for each in trained.network.parameters()}
        kept, copies, storages = {}, 0, []

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                kept[storage.data_ptr()] = storage.nbytes()
                storages.append(storage)  # so that no other storage gets this address
            return tensor

        def counted(forward, hidden, tokens, probs):
            nonlocal copies
            copies += len(hidden)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                return forward(hidden, tokens, probs)

        for layer in trained.network.moe:
            layer.experts.forward = functools.partial(counted, type(layer.experts).forward.__get__(layer.experts))
        trained.set_routing(routing(0, micro_batch, dist.get_rank()))
        generator = torch.Generator().manual_seed(dist.get_rank())
        hidden = torch.randn(10, 2, trained.config.hidden_size, generator=generator).requires_grad_()
        trained.ddp(hidden)
        return sum(kept.values()), copies


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="gated"),
        pytest.param({"bias_activation_fusion": True}, id="gated, fused"),
        pytest.param({"gated_linear_unit": False}, id="plain"),
        pytest.param({"recompute_granularity": "selective", "recompute_modules": ["moe"]}, id="recomputed"),
    ],
)
@on_ranks(EP4)
def test_M1_a_token_copy_keeps_what_is_predicted(cluster, options):
    trained = Trained(cluster, moe_ffn_hidden_size=256, **options)
    predicted, _ = bytes_per_copy(trained.config)
    for micro_batch in range(2):
        size_bytes, copies = kept_bytes(trained, micro_batch)
        assert copies
        assert size_bytes == pytest.approx(predicted * copies, rel=0.05)


@on_ranks(EP4)
def test_M1_S9_a_step_over_its_budget_is_in_the_log_of_rank_0_before_it_runs_once_until_one_fits(cluster):
    plans = {
        step: dataclasses.replace(plan, excess=excess)
        for (step, plan), excess in zip(
            plans_of(cluster, range(4)).items(), ("needs 3.00 GiB", "needs 4.00 GiB", "", "needs 5.00 GiB"), strict=True
        )
    }
    balanced, _ = attached(cluster, plans)
    log, lines = logging.getLogger("relibra.agent.plans.trouble"), Lines()
    log.addHandler(lines)
    num_lines = []
    for step in range(4):
        balanced.agent.begin_step(step, Phase.UPDATE)
        num_lines.append(len(lines.lines))
        balanced.agent.end_step()
    log.removeHandler(lines)
    balanced.agent.detach()
    if dist.get_rank():
        assert not lines.lines
    else:
        assert num_lines == [1, 1, 2, 3]
        assert lines.lines == [
            "step 0 is over its memory budget: needs 3.00 GiB (logged once until it is over)",
            "steps fit into the memory budget again, after 2 that did not",
            "step 3 is over its memory budget: needs 5.00 GiB (logged once until it is over)",
        ]
