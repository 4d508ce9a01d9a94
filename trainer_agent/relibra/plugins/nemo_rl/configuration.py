"""What the plug-in takes from NeMo-RL's configuration, and from the model that NeMo-RL has built."""

from functools import partial
from typing import Any

from megatron.core.utils import get_model_config
from nemo_rl.models.megatron import data, router_replay

from relibra.errors import InvalidInput, Unsupported
from relibra.plugins.nemo_rl import points
from relibra.plugins.nemo_rl.batch import rank_batch, trainer_layout
from relibra.routing import ModelLayers
from relibra.steps import RankBatch

points.check(data, router_replay)


class Packing:
    """How a worker cuts batches into rows.

    Args:
        config: the section `policy` of the configuration.
        model: the model.
    """

    def __init__(self, config: Any, model: Any) -> None:
        self._layers = layers_of(model)
        self._is_packed = bool(config["sequence_packing"]["enabled"])
        multiple = config["make_sequence_length_divisible_by"]
        pack_multiple, pack_length = 1, None
        if self._is_packed:
            _, pack_multiple, pack_length = data._get_pack_sequence_parameters_for_megatron(
                config["megatron_cfg"], multiple, multiple
            )
        self._has_pack_length = pack_length is not None
        self.trainer_layout = partial(
            trainer_layout,
            make_sequence_length_divisible_by=multiple,
            sequence_packing=self._is_packed,
            pack_multiple=pack_multiple,
        )
        """Returns how NeMo-RL assigns tokens to ranks."""

    @property
    def layers(self) -> ModelLayers:
        """The layers of the model."""
        return self._layers

    def rank_batch(self, batch: Any, micro_batch_size: int, padded_length: int) -> RankBatch:
        """Return the batch of this rank.

        Args:
            batch: the batch of which NeMo-RL makes micro-batches.
            micro_batch_size: their size, if NeMo-RL neither packs nor chooses sizes dynamically.
            padded_length: the last result of `get_microbatch_iterator` for it.

        Raises:
            InvalidInput: the routed experts do not fit their tokens.
        """
        return rank_batch(
            batch,
            self._layers,
            micro_batch_size,
            sequence_packing=self._is_packed,
            pack_length=padded_length if self._has_pack_length else None,
        )


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
        InvalidInput: routing is not replayed.
        Unsupported: relibra cannot plan passes with these settings.
    """
    if not router_replay.router_replay_enabled(config):
        raise InvalidInput.of(
            "policy.router_replay.enabled",
            expected="true, because relibra plans for routing that is replayed (or start the script without relibra)",
            got="false",
        )
    is_packed = config["sequence_packing"]["enabled"]
    if config["megatron_cfg"]["context_parallel_size"] > 1 and (not is_packed or slices_context_parallel_inputs):
        raise Unsupported(
            "relibra plans context parallelism only with policy.sequence_packing.enabled=true, and not for models that "
            "cut packed inputs themselves (model_slices_context_parallel_inputs); set "
            "policy.megatron_cfg.context_parallel_size=1"
        )
