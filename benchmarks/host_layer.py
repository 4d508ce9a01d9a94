"""The host's time for a layer of megatron-core without relibra, in stages of a pass: what it takes to launch the layer.

    python -m benchmarks.host_layer [--turns 300]

A transformer layer of megatron-core's own parts (attention, norms, router, all-to-all dispatcher) runs on tiny tensors.
The process plays one of eight ranks, and collectives return at once. Experts are one autograd function, because
grouped products need Transformer Engine, so their launches are left out. What is left of the time is the host's: the
tenth percentile of the processor's time. *Operations* are those that torch's dispatcher counts: on a GPU, most of them
are launches, whose time in the driver comes on top.

- *dispatch*: from the point where the host waits for the splits of the all-to-all to its launch.
- *experts*: until the experts are launched. *combine*: until the all-to-all back is launched.
- *attention*: what follows in the layer, and the next layer until its attention is launched.
- *router*: from there to the wait.
- *backward*: all of it. Nothing waits in it.

Writes `benchmarks/results/host_layer.json`.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from benchmarks.laps import WARM_UPS, Laps, Operations, small_operation_us
from benchmarks.results import show, write
from relibra.demo import megatron_on_cpu

NUM_RANKS, NUM_LAYERS, NUM_TOKENS, HIDDEN, NUM_EXPERTS, TOP_K = 8, 4, 16, 32, 128, 8


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, *others: Tensor) -> Tensor:
        ctx.num_others = len(others)
        return tokens.view_as(tokens)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *[None] * ctx.num_others


class Layers:
    """The layers, and the laps that they report to."""

    def __init__(self) -> None:
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.transformer.spec_utils import build_module
        from megatron.core.transformer.transformer_config import TransformerConfig

        config = TransformerConfig(
            num_layers=NUM_LAYERS,
            hidden_size=HIDDEN,
            ffn_hidden_size=HIDDEN,
            moe_ffn_hidden_size=8,
            num_attention_heads=4,
            num_query_groups=2,
            num_moe_experts=NUM_EXPERTS,
            moe_router_topk=TOP_K,
            moe_router_load_balancing_type="none",
            moe_router_dtype="fp32",
            moe_token_dispatcher_type="alltoall",
            expert_model_parallel_size=NUM_RANKS,
            expert_tensor_parallel_size=1,
            add_bias_linear=False,
            gated_linear_unit=True,
            activation_func=F.silu,
            normalization="RMSNorm",
            hidden_dropout=0.0,
            attention_dropout=0.0,
            **megatron_on_cpu.SETTINGS,
        )
        spec = get_gpt_layer_local_spec(
            num_experts=NUM_EXPERTS, moe_grouped_gemm=False, qk_layernorm=True, normalization="RMSNorm"
        )
        self.laps = Laps()
        self._layers = [build_module(spec, config=config, layer_number=number) for number in range(1, NUM_LAYERS + 1)]
        self._hidden = torch.randn(NUM_TOKENS, 1, HIDDEN, requires_grad=True)
        self._mask = torch.triu(torch.ones(NUM_TOKENS, NUM_TOKENS, dtype=torch.bool), 1)[None, None]
        for layer in self._layers:
            moe, dispatcher = layer.mlp, layer.mlp.token_dispatcher
            moe.experts.forward = self._experts(list(moe.experts.parameters()))
            moe.forward = self._after("attention", moe.forward)
            dispatcher.token_dispatch = self._after("router", dispatcher.token_dispatch, then="dispatch")
            dispatcher.token_combine = self._after(None, dispatcher.token_combine, then="combine")

    def _experts(self, weights: list[Tensor]) -> Callable[..., tuple[Tensor, None]]:
        def forward(tokens: Tensor, tokens_per_expert: Tensor, probs: Tensor) -> tuple[Tensor, None]:
            product: Tensor = _Product.apply(tokens, probs, *weights)  # type: ignore[no-untyped-call]
            self.laps.end("experts")
            return product, None

        return forward

    def _after(self, ended: str | None, call: Callable[..., Any], then: str | None = None) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if ended is not None:
                self.laps.end(ended)
            result = call(*args, **kwargs)
            if then is not None:
                self.laps.end(then)
            return result

        return called

    def run(self, laps: Laps) -> None:
        """Run a forward without a backward, and a forward with one."""
        self.laps = laps
        laps.begin()
        with torch.no_grad():
            self._forward()
        loss = torch.nan_to_num(self._forward()).sum()  # the fake all-to-all leaves what lies in memory
        laps.begin()
        loss.backward()
        laps.end("backward")

    def _forward(self) -> Tensor:
        hidden = self._hidden
        for layer in self._layers:
            hidden = layer(hidden, attention_mask=self._mask)[0]
        self.laps.end("attention")
        return hidden


def _join() -> None:
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_RANKS)
    parallel_state.initialize_model_parallel(
        expert_model_parallel_size=NUM_RANKS, expert_tensor_parallel_size=1, create_gloo_process_groups=False
    )
    model_parallel_cuda_manual_seed(1)


def main() -> None:
    """Measure, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=300)
    num_turns = parser.parse_args().turns
    if num_turns <= WARM_UPS:
        parser.error(f"--turns: expected more than the {WARM_UPS} that warm up, got {num_turns}")
    warnings.simplefilter("ignore")
    logging.getLogger("megatron").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    operation_us = round(small_operation_us(), 2)  # before the shims, which slow it down
    megatron_on_cpu.install()
    _join()
    layers = Layers()
    turns = [Laps(time.thread_time) for _ in range(num_turns)]
    for laps in turns:
        layers.run(laps)
    with Operations() as operations:
        layers.run(counted := Laps(lambda: operations.num))
    rows = []
    for stage, num in counted.by_stage.items():
        passes = NUM_LAYERS * (1 if stage == "backward" else 2)
        spent_us = float(np.percentile([laps.by_stage[stage] for laps in turns[WARM_UPS:]], 10)) / passes * 1e6
        rows.append({"stage": stage, "us": round(spent_us, 1), "operations": num / passes})
    show(f"a layer of megatron-core, a pass; a small operation takes {operation_us} us", rows)
    write("host_layer", rows, turns=num_turns, small_operation_us=operation_us)


if __name__ == "__main__":
    main()
