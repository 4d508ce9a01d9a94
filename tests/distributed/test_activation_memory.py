"""What layers take for the tokens of experts is what the model of memory says (M1)."""

import pytest

from harness.distributed.layout import EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import dataclasses
    import gc
    import logging
    from contextlib import nullcontext

    import numpy as np
    import torch
    import torch.distributed as dist

    from harness.distributed.attached import attached, plans_of
    from harness.distributed.device import DEVICE
    from harness.distributed.live_bytes import LiveBytes
    from harness.distributed.networks import MODEL, TOKENS, Trained, routing
    from relibra.agent import Phase
    from relibra.plugins.activation_memory import bytes_per_copy

    REPEATS = 120

    class Lines(logging.Handler):
        """Keeps the lines of a log."""

        def __init__(self):
            super().__init__(logging.WARNING)
            self.lines = []

        def emit(self, record):
            self.lines.append(record.getMessage())

    def measure(trained, micro_batch):
        """Return the token copies of this rank in a layer, the bytes that autograd keeps, and the most bytes.

        It looks twice, and the smaller bytes count: what is under way to other ranks lives longer on a busy machine.
        """
        return min((look(trained, micro_batch) for _ in range(2)), key=lambda looked: looked[-1])

    def look(trained, micro_batch):
        gc.collect()
        layer, live, num_copies, kept = trained.network.moe[0], LiveBytes(), 0, {}
        forward, running = layer.experts.forward, nullcontext()
        if trained.agent is not None:
            running = trained.agent.micro_batch(micro_batch)

        def keep(tensor):
            kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()  # autograd keeps them all
            return tensor

        def counted(hidden, *others):
            nonlocal num_copies
            num_copies = len(hidden)
            return forward(hidden, *others)

        layer.experts.forward = counted
        trained.set_routing(routing(0, micro_batch, dist.get_rank()).repeat(1, REPEATS, 1))
        for parameter in trained.network.parameters():
            parameter.grad = None
        hidden = torch.randn(TOKENS * REPEATS, 1, trained.config.hidden_size, device=DEVICE).requires_grad_()
        on_gpu = DEVICE.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        with live:
            with running, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                output = layer(hidden)[0]
            output.sum().backward()
        layer.experts.forward = forward
        return num_copies, sum(kept.values()), torch.cuda.max_memory_allocated() if on_gpu else live.most


@pytest.mark.parametrize(
    ("ffn", "options"),
    [
        pytest.param(32, {"bias_activation_fusion": True}, id="gated, fused"),
        pytest.param(128, {}, id="gated, wide"),
        pytest.param(64, {"gated_linear_unit": False}, id="plain"),
        pytest.param(64, {"add_bias_linear": True}, id="gated, with biases"),
        pytest.param(
            64, {"gated_linear_unit": False, "planned": True}, id="plain, with replicas", marks=pytest.mark.long
        ),
        pytest.param(
            32,
            {"bias_activation_fusion": True, "recompute_granularity": "selective", "recompute_modules": ["moe"]},
            id="recomputed",
        ),
    ],
)
@on_ranks(EP4)
def test_M1_a_token_copy_takes_what_is_predicted(cluster, ffn, options):
    """More copies on a rank take more bytes, in the same proportion: dispatch, experts and combine together."""
    sizes = {"grouped": True, "moe_grouped_gemm": True, "hidden_size": 64, "moe_ffn_hidden_size": ffn}
    if options.pop("planned", False):
        trained, _ = attached(cluster, plans_of(cluster, range(1)), **sizes, **options)
        trained.agent.begin_step(0, Phase.UPDATE)
    else:
        trained = Trained(cluster, **sizes, **options)
    told = [None] * cluster.num_ranks
    dist.all_gather_object(told, [measure(trained, micro_batch) for micro_batch in range(6)])
    if trained.agent is not None:
        trained.agent.end_step()
        trained.agent.detach()
    # Ranks that send more than they receive are at their most at another time.
    hot = np.array([row for rows in told for row in rows if row[0] > TOKENS * REPEATS * MODEL.top_k])
    assert len(hot) > 6
    kept_bytes, working_bytes = bytes_per_copy(trained.config)
    for measured, predicted in zip(hot[:, 1:].T, (kept_bytes, kept_bytes + working_bytes), strict=True):
        slope, _ = np.polyfit(hot[:, 0], measured, 1)
        assert slope == pytest.approx(predicted, rel=0.05, abs=8), (slope, predicted)


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
