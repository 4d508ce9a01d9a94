"""The attributes of verl that the plug-in relies on, so that another version of verl is refused by name at start."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from relibra.errors import Unsupported

WRITTEN_AGAINST = "0.9.1"

WORKERS: Mapping[str, Sequence[str]] = {"TrainingWorker.__init__": ()}
"""Attributes of `verl.workers.engine_workers`, each with the parameters that it must have."""

ENGINE: Mapping[str, Sequence[str]] = {
    "prepare_micro_batches": ("data",),
    "tu.get_non_tensor_data": ("key", "default"),
    "EngineRegistry._engines": (),
    "EngineRegistry.register": ("model_type", "backend", "device", "vendor"),
    "MegatronEngineWithLMHead.initialize": (),
    "MegatronEngineWithLMHead.forward_backward_batch": ("data", "loss_function", "forward_only"),
    "MegatronEngineWithLMHead.forward_step": ("batch_iter", "model"),
    "MegatronEngineWithLMHead.optimizer_step": (),
    "MegatronEngineWithLMHead.to": ("device",),
    "MegatronEngineWithLMHead.get_per_tensor_param": (),
    "MegatronEngineWithLMHead.get_per_tensor_param_shard": (),
    "MegatronEngineWithLMHead.save_checkpoint": (),
    "MegatronEngineWithLMHead.load_checkpoint": (),
    "MegatronCheckpointManager._save_model_as_hf_via_bridge": (),
}
"""Likewise, attributes of `verl.workers.engine.megatron.transformer_impl`."""


def check(module: Any, wanted: Mapping[str, Sequence[str]]) -> None:
    """Check that a module of verl has the attributes that the plug-in relies on.

    Raises:
        Unsupported: an attribute or a parameter is missing; the message names all that are.
    """
    missing = [text for path, parameters in wanted.items() for text in _missing(module, path, parameters)]
    if missing:
        raise Unsupported(
            f"expected verl {WRITTEN_AGAINST} or one like it, and {module.__name__} lacks {', '.join(missing)}; use "
            f"verl {WRITTEN_AGAINST}, or remove relibra from external_lib to train without balancing"
        )


def _missing(module: Any, path: str, parameters: Sequence[str]) -> list[str]:
    found = module
    for name in path.split("."):
        if not hasattr(found, name):
            return [path]
        found = getattr(found, name)
    if not parameters:
        return []
    has = inspect.signature(found).parameters
    return [f"the parameter {each} of {path}" for each in parameters if each not in has]
