"""CUDA graphs over parts of transformer layers, over a stand-in for the graphs of Transformer Engine (S5).

Megatron's own code (core 0.16.1, transformer/transformer_layer.py) calls the graphs of a layer instead of its forward.
A `Graph` here computes what megatron captures, eagerly, and notes the hooks of the agent that run inside: in a real
graph such a hook runs once, in the capture, and what it found then holds for ever.
"""

from harness.distributed.layout import EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import contextlib
    import functools
    import sys
    from types import ModuleType
    from unittest import mock

    import torch
    from megatron.core import utils
    from megatron.core.transformer import enums, transformer_layer
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.transformer_layer import TransformerLayer
    from packaging.version import Version

    from harness.distributed import gpt_job
    from harness.distributed.comparison import assert_active, assert_equal, balanced_job, compare
    from harness.distributed.gpt_model import BATCH, HIDDEN, SEQUENCE
    from relibra.agent.cells.layer import LayerExecution

GRAPHS = {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "attn,mlp"}
HOOKS = ("enter", "routing", "remap", "compute")


class Graph:
    """Stands for the captured graph of one layer."""

    num_open = 0

    def __init__(self, layer):
        self._layer = layer

    def __call__(self, *args, is_first_microbatch, **kwargs):
        Graph.num_open += 1
        try:
            return self._layer._te_cuda_graph_capture(*args, **kwargs)
        finally:
            Graph.num_open -= 1


def graphed():
    """Give graphs to the layers of models that are built within the body; yield the hooks that run inside them."""
    plain_build, hooks = gpt_job.build, set()

    def build(*args, **kwargs):
        model = plain_build(*args, **kwargs)
        for layer in model.modules():
            if isinstance(layer, TransformerLayer):
                layer.cuda_graphs = [Graph(layer)]
        return model

    def noting(name):
        plain = getattr(LayerExecution, name)

        @functools.wraps(plain)
        def hook(*args, **kwargs):
            if Graph.num_open:
                hooks.add(name)
            return plain(*args, **kwargs)

        return hook

    @contextlib.contextmanager
    def installed():
        names = ("transformer_engine", "transformer_engine.pytorch")
        with (
            mock.patch.dict(sys.modules, {name: ModuleType(name) for name in names}),
            mock.patch.object(utils, "_te_version", Version("2.4.0")),
            mock.patch.object(gpt_job, "build", build),
            mock.patch.multiple(LayerExecution, **{name: noting(name) for name in HOOKS}),
        ):
            yield hooks

    return installed()


@on_ranks(EP4)
def test_S5_layers_with_graphs_of_attention_and_dense_mlps_train_as_plain_megatron(cluster):
    with graphed() as hooks:
        got = compare(cluster, sharded=False, bf16=False, experts=GRAPHS)
    assert_active(got)
    assert_equal(got)
    assert hooks == set()


@on_ranks(EP4)
def test_S5_graphs_that_are_refused_would_capture_hooks_of_the_agent(cluster):
    """Layers have no entrance hooks, which would forbid their capture."""
    captured = {}
    with graphed() as hooks:
        job, _ = balanced_job(cluster, **GRAPHS)
        modules = (module for model in job.models for module in model.modules())
        layer = next(each for each in modules if isinstance(each, TransformerLayer) and each.is_moe_layer)
        # Newer versions of megatron-core call the setting `cuda_graph_modules`, and take the old name as well.
        is_renamed = hasattr(job.config, "cuda_graph_modules")
        setting, scope_type = (
            ("cuda_graph_modules", enums.CudaGraphModule) if is_renamed else ("cuda_graph_scope", enums.CudaGraphScope)
        )
        for scopes in ("attn", "attn,moe_router", "attn,moe_router,moe_preprocess", ""):
            of_layer = [scope_type[scope] for scope in scopes.split(",") if scope]
            hooks.clear()
            with (
                mock.patch.object(job.config, setting, of_layer),
                mock.patch.object(transformer_layer, "is_graph_capturing", return_value=True),
                mock.patch.object(moe_utils, "is_graph_capturing", return_value=True),
            ):
                Graph(layer)(torch.ones(SEQUENCE, BATCH, HIDDEN), attention_mask=None, is_first_microbatch=True)
            captured[scopes or "the whole layer"] = sorted(hooks)
        assert not layer._forward_pre_hooks, "Transformer Engine captures no module that has any"
        job.agent.detach()
    assert captured == {
        "attn": [],
        "attn,moe_router": ["routing"],
        "attn,moe_router,moe_preprocess": ["remap", "routing"],
        "the whole layer": ["compute", "remap", "routing"],
    }
