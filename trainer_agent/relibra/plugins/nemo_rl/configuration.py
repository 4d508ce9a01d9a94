"""What the plug-in takes from NeMo-RL's configuration, and from the model that NeMo-RL has built."""

from typing import Any

from megatron.core.utils import get_model_config
from nemo_rl.models.megatron import router_replay

from relibra.errors import Unsupported
from relibra.plugins.nemo_rl import points
from relibra.routing import ModelLayers

points.check(router_replay)


def layers_of(model: Any) -> ModelLayers:
    """Return the layers of a built model as NeMo-RL's routing replay numbers them."""
    config = get_model_config(model)
    moe = set(router_replay._global_moe_layer_numbers(config))
    return ModelLayers(
        num_experts=config.num_moe_experts,
        top_k=config.moe_router_topk,
        is_moe=tuple(number in moe for number in range(1, config.num_layers + 1)),
    )


def check_settings(config: Any, *, slices_context_parallel_inputs: bool) -> None:
    """Check the settings of a worker that trains.

    Args:
        config: the section `policy` of the configuration.
        slices_context_parallel_inputs: the worker's attribute `model_slices_context_parallel_inputs`.

    Raises:
        Unsupported: the plug-in was not run with these settings.
    """
    is_packed = config["sequence_packing"]["enabled"]
    if config["megatron_cfg"]["context_parallel_size"] > 1 and (not is_packed or slices_context_parallel_inputs):
        raise Unsupported(
            "relibra was run with context parallelism only where policy.sequence_packing.enabled=true, and not for "
            "models that cut packed inputs themselves (model_slices_context_parallel_inputs); set "
            "policy.megatron_cfg.context_parallel_size=1"
        )
