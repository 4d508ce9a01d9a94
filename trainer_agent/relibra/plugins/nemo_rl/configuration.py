"""What the plug-in takes from the model that NeMo-RL has built."""

from typing import Any

from megatron.core.utils import get_model_config
from nemo_rl.models.megatron import router_replay

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
