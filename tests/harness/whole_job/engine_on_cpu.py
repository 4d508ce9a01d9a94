"""What a vLLM server needs of a GPU, stood in for on the CPU: routes that are recorded, and weights that change.

vLLM's worker imports this module before it loads a model, with the extension of a framework. Two things are not vLLM's
own, and all else is:

- vLLM's CPU kernel chooses experts inside, and vLLM refuses to record them (`not supported with monolithic MoE
  kernel`). The kernel has the ids in Python after the choice; they are handed to vLLM's own capturer.
- The CPU's layers keep packed copies of weights, so that weights cannot be written into them. The framework's own
  transport brings the weights, and the model is built anew from them.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

from harness.whole_job.variables import RECEIVED


def _record_routes() -> None:
    choose = CPUUnquantizedExperts._select_experts

    def choose_and_record(self: Any, *args: Any, **kwargs: Any) -> Any:
        weights, ids = choose(self, *args, **kwargs)
        if self.routing_replay_capture_fn is not None:
            self.routing_replay_capture_fn(ids)
        return weights, ids

    CPUUnquantizedExperts._select_experts = choose_and_record
    CPUUnquantizedExperts.supports_routing_replay_capture = lambda self: True


_record_routes()


def take(runner: Any, config: Any, weights: dict[str, torch.Tensor]) -> None:
    """Have a server compute with other weights.

    Args:
        runner: vLLM's runner of the model.
        config: vLLM's configuration.
        weights: all tensors of the model, under the names of its files.
    """
    with tempfile.TemporaryDirectory() as folder:
        save_file(weights, Path(folder, "model.safetensors"))
        for file in Path(runner.model_config.model).glob("*.json"):
            if "safetensors" not in file.name:
                Path(folder, file.name).write_bytes(file.read_bytes())
        _load(runner, config, folder)


def keep(weights: dict[str, torch.Tensor]) -> None:
    """Keep what a server got, in the folder for it, if there is one."""
    if folder := os.environ.get(RECEIVED):
        Path(folder).mkdir(exist_ok=True)
        num_before = len(list(Path(folder).iterdir()))
        torch.save(weights, Path(folder, f"{num_before:03}.pt"))


def _load(runner: Any, config: Any, folder: str) -> None:
    """Build the model anew from a folder, with the KV cache that the one before has."""
    layers = config.compilation_config.static_forward_context
    before, model = dict(layers), runner.model_config.model
    layers.clear()
    config.compilation_config.static_all_moe_layers.clear()
    load_format = config.load_config.load_format
    runner.model_config.model, config.load_config.load_format = folder, "safetensors"
    with set_current_vllm_config(config):
        runner.load_model()
    runner.model_config.model, config.load_config.load_format = model, load_format
    for name, layer in before.items():
        if hasattr(layer, "kv_cache"):
            for key, value in vars(layer).items():
                vars(layers[name]).setdefault(key, value)  # what the worker has set, such as instruction sets
            layers[name].kv_cache = layer.kv_cache
    if runner.model_config.enable_return_routed_experts:
        runner.init_routed_experts_capturer()
