"""What verl's vLLM server needs of a GPU, stood in for on the CPU: routes that are recorded, and weights that change.

verl's setting `engine_kwargs.vllm.worker_extension_cls` names `Extension`, so vLLM's worker imports this module before
it loads a model. Two things are not vLLM's own, and all else is:

- vLLM's CPU kernel chooses experts inside, and vLLM refuses to record them (`not supported with monolithic MoE
  kernel`). The kernel has the ids in Python after the choice; they are handed to vLLM's own capturer.
- The CPU's layers keep packed copies of weights, so that weights cannot be written into them. verl's own transport
  brings the weights here, and the model is built anew from them.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
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


def _without_device() -> None:
    """Let verl's transport wait for a device, and free its memory, where there is none."""
    for name in ("synchronize", "empty_cache", "ipc_collect"):
        setattr(torch.cuda, name, lambda *_: None)


_record_routes()
_without_device()


class Extension(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """verl's own extension of the worker, but for the way in which weights take effect."""

    def update_weights_from_ipc(
        self, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Receive all weights as verl sends them, and build the model from them."""
        from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

        weights: dict[str, Any] = {}

        def take(bucket: list[tuple[str, Any]], is_last: bool) -> None:
            weights.update((name, tensor.clone()) for name, tensor in bucket)

        BucketedWeightReceiver(self._get_zmq_handle(), self.device, use_shm).receive_weights(take)
        self._keep(weights)
        with tempfile.TemporaryDirectory() as folder:
            save_file(weights, Path(folder, "model.safetensors"))
            for file in Path(self.model_runner.model_config.model).glob("*.json"):
                if "safetensors" not in file.name:
                    Path(folder, file.name).write_bytes(file.read_bytes())
            self._load(folder)

    def _keep(self, weights: dict[str, Any]) -> None:
        if (folder := os.environ.get(RECEIVED)) and os.environ.get("VERL_REPLICA_RANK", "0") == "0":
            Path(folder).mkdir(exist_ok=True)
            num_before = len(list(Path(folder).iterdir()))
            torch.save(weights, Path(folder, f"{num_before:03}.pt"))

    def _load(self, folder: str) -> None:
        """Build the model anew from a folder, with the KV cache that the one before has."""
        runner, compilation = self.model_runner, self.vllm_config.compilation_config
        layers = compilation.static_forward_context
        before, model = dict(layers), runner.model_config.model
        layers.clear()
        compilation.static_all_moe_layers.clear()
        load_format = self.vllm_config.load_config.load_format
        runner.model_config.model, self.vllm_config.load_config.load_format = folder, "safetensors"
        with set_current_vllm_config(self.vllm_config):
            runner.load_model()
        runner.model_config.model, self.vllm_config.load_config.load_format = model, load_format
        for name, layer in before.items():
            if hasattr(layer, "kv_cache"):
                for key, value in vars(layer).items():
                    vars(layers[name]).setdefault(key, value)  # what the worker has set, such as instruction sets
                layers[name].kv_cache = layer.kv_cache
        if runner.model_config.enable_return_routed_experts:
            runner.init_routed_experts_capturer()
