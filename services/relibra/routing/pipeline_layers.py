"""Which pipeline stage holds which router."""

from collections.abc import Sequence

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.model_layers import ModelLayers


def stage_routers(
    layers: ModelLayers, num_stages: int, num_chunks: int = 1, block_sizes: Sequence[int] | None = None
) -> list[list[int]]:
    """Return the MoE layers of every stage, in the order in which Megatron makes their routers.

    With a virtual pipeline a stage holds several chunks of layers: block b of layers is chunk `b // num_stages` of
    stage `b % num_stages`. Every MoE layer is in exactly one stage.

    Args:
        layers: the model's.
        num_stages: pipeline stages.
        num_chunks: chunks of every stage.
        block_sizes: transformer layers of every block, for stages of different size; even by default.

    Raises:
        InvalidInput: blocks that do not make up the layers.
    """
    num_blocks = num_stages * num_chunks
    if block_sizes is None:
        if num_blocks < 1 or layers.num_layers % num_blocks:
            raise InvalidInput.of(
                "num_stages", expected=f"stages x chunks that divide the {layers.num_layers} layers", got=num_blocks
            )
        block_sizes = [layers.num_layers // num_blocks] * num_blocks
    if len(block_sizes) != num_blocks or sum(block_sizes) != layers.num_layers or min(block_sizes) < 0:
        raise InvalidInput.of(
            "block_sizes", expected=f"{num_blocks} that sum to {layers.num_layers}", got=list(block_sizes)
        )
    block_X = np.repeat(np.arange(num_blocks), block_sizes)
    stages: list[list[int]] = [[] for _ in range(num_stages)]
    for moe_layer, layer in enumerate(np.flatnonzero(layers.is_moe)):
        stages[block_X[layer] % num_stages].append(moe_layer)
    return stages
