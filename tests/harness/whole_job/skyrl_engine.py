"""SkyRL's vLLM server on the CPU; `engine_init_kwargs.worker_extension_cls` names `Extension`."""

from typing import Any

from skyrl.backends.skyrl_train.inference_servers.new_inference_worker_wrap import NewInferenceWorkerWrap
from skyrl.backends.skyrl_train.weight_sync.delta.engine import DeltaWeightTransferEngine
from skyrl.backends.skyrl_train.weight_sync.register import DELTA_BACKEND
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from harness.whole_job import engine_on_cpu


class Extension(NewInferenceWorkerWrap):  # type: ignore[misc]
    """SkyRL's own extension of the worker."""

    def fetch_weights(self, *args: Any, **kwargs: Any) -> Any:
        """Fetch a delta as SkyRL does, with a receiver that knows the runner of the model."""
        self.weight_transfer_engine.runner = self.model_runner
        return super().fetch_weights(*args, **kwargs)


class Receiver(DeltaWeightTransferEngine):  # type: ignore[misc]
    """SkyRL's own receiver of deltas, but for the way in which weights take effect."""

    runner: Any

    def start_weight_update(self) -> None:
        """Leave the layers as they are."""

    def finish_weight_update(self) -> None:
        """Do nothing: the weights have taken effect."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Build the model from the checkpoint that SkyRL has put together from its deltas."""
        self._store.validate_ready(self.parse_update_info(update_info).resolved_target_version)
        weights = dict(self._store.iter_tensors(load_format=self._checkpoint_load_format))
        engine_on_cpu.keep(weights)
        engine_on_cpu.take(self.runner, self.vllm_config, weights)


WeightTransferEngineFactory._registry[DELTA_BACKEND] = lambda: Receiver
