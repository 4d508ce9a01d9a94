"""verl's vLLM server on the CPU; `engine_kwargs.vllm.worker_extension_cls` names `Extension`."""

import os
from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from harness.whole_job import engine_on_cpu


def _without_device() -> None:
    """Let verl's transport wait for a device, and free its memory, where there is none."""
    for name in ("synchronize", "empty_cache", "ipc_collect"):
        setattr(torch.cuda, name, lambda *_: None)


_without_device()


class Extension(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """verl's own extension of the worker, but for the way in which weights take effect."""

    def update_weights_from_ipc(
        self, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Receive all weights as verl sends them, and build the model from them."""
        from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

        weights: dict[str, Any] = {}

        def receive(bucket: list[tuple[str, Any]], is_last: bool) -> None:
            weights.update((name, tensor.clone()) for name, tensor in bucket)

        BucketedWeightReceiver(self._get_zmq_handle(), self.device, use_shm).receive_weights(receive)
        if os.environ.get("VERL_REPLICA_RANK", "0") == "0":
            engine_on_cpu.keep(weights)
        engine_on_cpu.take(self.model_runner, self.vllm_config, weights)
