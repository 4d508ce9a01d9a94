"""Scenarios with CUDA graphs over parts of transformer layers, over a stand-in for the graphs of Transformer Engine.

Megatron's own code (core 0.16.1, transformer/transformer_layer.py) calls the graphs of a layer instead of its forward.
A `Graph` here computes what megatron captures, eagerly, and notes the hooks of the agent that run inside: in a real
graph such a hook runs once, in the capture, and what it found then holds for ever.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from megatron.core import utils
from megatron.core.transformer import enums, transformer_layer
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_layer import TransformerLayer
from packaging.version import Version
from torch import nn

from harness.distributed import gpt_job
from harness.distributed.gpt_model import BATCH, HIDDEN, SEQUENCE
from harness.distributed.matrix import balanced_job, compare
from relibra.agent.cells.layer import LayerExecution
from relibra.planning import Cluster

Result = dict[str, Any]
GRAPHS: dict[str, Any] = {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "attn,mlp"}
_HOOKS = ("enter", "routing", "remap", "compute")
_open: list["Graph"] = []
_found: set[str] = set()


class Graph:
    """Stands for the captured graph of one layer."""

    def __init__(self, layer: TransformerLayer) -> None:
        self._layer = layer

    def __call__(self, *args: Any, is_first_microbatch: bool, **kwargs: Any) -> Any:
        _open.append(self)
        try:
            return self._layer._te_cuda_graph_capture(*args, **kwargs)
        finally:
            _open.pop()


def _noting(name: str) -> Callable[..., Any]:
    plain = getattr(LayerExecution, name)

    @functools.wraps(plain)
    def hook(*args: Any, **kwargs: Any) -> Any:
        if _open:
            _found.add(name)
        return plain(*args, **kwargs)

    return hook


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Give graphs to the layers of models that are built within the body, and note the hooks that run inside them."""
    plain_build = gpt_job.build

    def build(*args: Any, **kwargs: Any) -> nn.Module:
        model = plain_build(*args, **kwargs)
        for layer in model.modules():
            if isinstance(layer, TransformerLayer):
                layer.cuda_graphs = [Graph(layer)]
        return model

    _found.clear()
    with contextlib.ExitStack() as stack:
        names = ("transformer_engine", "transformer_engine.pytorch")
        stack.enter_context(mock.patch.dict(sys.modules, {name: ModuleType(name) for name in names}))
        stack.enter_context(mock.patch.object(utils, "_te_version", Version("2.4.0")))
        stack.enter_context(mock.patch.object(gpt_job, "build", build))
        for name in _HOOKS:
            stack.enter_context(mock.patch.object(LayerExecution, name, _noting(name)))
        yield


def graphed(cluster: Cluster) -> Result:
    with installed():
        return compare(cluster, sharded=False, bf16=False, experts=GRAPHS) | {"hooks_in_graphs": sorted(_found)}


def hooks_in_captures(cluster: Cluster) -> Result:
    """Capture a MoE layer with several scopes, and return the hooks that run inside each."""
    found: dict[str, list[str]] = {}
    with installed():
        job, _ = balanced_job(cluster, **GRAPHS)
        layer = next(
            each
            for model in job.models
            for each in model.modules()
            if isinstance(each, TransformerLayer) and each.is_moe_layer
        )
        # Newer versions of megatron-core call the setting `cuda_graph_modules`, and take the old name as well.
        is_renamed = hasattr(job.config, "cuda_graph_modules")
        setting, scope_type = (
            ("cuda_graph_modules", enums.CudaGraphModule) if is_renamed else ("cuda_graph_scope", enums.CudaGraphScope)
        )
        for scopes in ("attn", "attn,moe_router", "attn,moe_router,moe_preprocess", ""):
            of_layer = [scope_type[scope] for scope in scopes.split(",") if scope]
            _found.clear()
            with (
                mock.patch.object(job.config, setting, of_layer),
                mock.patch.object(transformer_layer, "is_graph_capturing", return_value=True),
                mock.patch.object(moe_utils, "is_graph_capturing", return_value=True),
            ):
                Graph(layer)(torch.ones(SEQUENCE, BATCH, HIDDEN), attention_mask=None, is_first_microbatch=True)
            found[scopes or "the whole layer"] = sorted(_found)
        num_entrances = len(layer._forward_pre_hooks)  # Transformer Engine captures no module that has any
        assert job.agent is not None
        job.agent.detach()
    return {"found": found, "num_entrances": num_entrances}


SCENARIOS: dict[str, Callable[[Cluster], Result]] = {"graphed": graphed, "hooks_in_captures": hooks_in_captures}
