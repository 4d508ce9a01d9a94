"""slime and miles as the plug-in sees them: the attributes that it relies on, and the options that it refuses."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from relibra.errors import Unsupported
from relibra.plugins.points import Points
from relibra.plugins.slime.batch import rank_batch, with_micro_batches
from relibra.routing import ModelLayers
from relibra.steps import RankBatch

Batches = Callable[[int], RankBatch]
"""Returns the batch of a training step of the rollout, by its index."""

Rename = Callable[[list[tuple[str, Any]]], None]
"""Gives every expert in a list of weights under Hugging Face names its own name."""

_ACTOR: Points = {
    "initialize_model_and_optimizer": ("args", "role", ...),
    "get_data_iterator": ("rollout_data", ...),
    "forward_only": ("store_prefix", ...),
    "train": ("rollout_id", "num_microbatches", ...),
    "TensorBackuper.create": ("source_getter", ...),
    "TensorBackuper.backup": ("tag",),
    "TensorBackuper.restore": ("tag",),
    "MegatronTrainRayActor.init": ("args", "role", ...),
}
_MODEL: Points = {"get_forward_backward_func": ()}


_OF_MICRO_BATCHES = {
    "moe_aux_loss_coeff": "--moe-aux-loss-coeff",
    "moe_z_loss_coeff": "--moe-z-loss-coeff",
    "enable_mtp_training": "--enable-mtp-training",
    "custom_loss_function_path": "--custom-loss-function-path",
    "custom_tis_function_path": "--custom-tis-function-path",
    "custom_pg_loss_reducer_function_path": "--custom-pg-loss-reducer-function-path",
}
"""Options that add terms over all tokens of a micro-batch, or functions that see a whole micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One of the two frameworks."""

    name: str
    version: str
    """What the plug-in was written against."""
    package: str
    """The package of the Megatron backend."""
    points: Mapping[str, Points]
    """The attributes that the plug-in relies on, by module of the package."""
    saving: tuple[str, str]
    """The module and the function that write a checkpoint of Hugging Face from the modules."""
    sending: str
    """The method of an updater of remote engines through which experts leave, under Hugging Face names that travel with
    them."""
    renaming: Callable[[Callable[..., Any], Rename], Callable[..., Any]]
    """Returns the method with names changed."""
    refusals: Callable[[Any], Iterable[str]]
    """Returns options in `args` with which relibra cannot balance, each with its alternative."""
    batches: Callable[[ModelLayers, Mapping[str, Any], Sequence[Any], Sequence[int]], Batches]
    """Takes the layers, `rollout_data`, the data iterators and `num_microbatches`."""
    generating: Sequence[str]
    """The modules whose `generate_and_rm` generates samples in the rollout manager."""
    splitting: str
    """The function that splits a rollout among data-parallel ranks: a method of the rollout manager, or
    module:function."""
    replaying: Callable[[], str]
    """Returns what the replays of routing of this process do now, or an empty text."""

    def check(self, args: Any) -> None:
        """Check the options of a job.

        Raises:
            Unsupported: relibra cannot balance with an option; the message names all such options.
        """
        refused = list(self.refusals(args))
        if refused:
            raise Unsupported(f"relibra does not balance {self.name} with " + "; nor with ".join(refused))

    def check_packing(self, args: Any) -> None:
        """Check that no term of the loss depends on which samples share a micro-batch.

        Raises:
            Unsupported: one does, or may; the message names all such options.
        """
        refused = [option for name, option in _OF_MICRO_BATCHES.items() if _is_set(getattr(args, name, None))]
        if refused:
            raise Unsupported(
                f"relibra does not choose the micro-batches of {self.name} (pack) with {', '.join(refused)}: the loss "
                "may then depend on which samples share a micro-batch; leave out pack or these options"
            )


def _chunks_renamed(chunks: Callable[..., Iterable[list[Any]]], rename: Rename) -> Callable[..., Iterator[list[Any]]]:
    """Return slime's `_iter_expert_chunks` with names changed in each chunk."""

    def renamed(*args: Any, **kwargs: Any) -> Iterator[list[Any]]:
        for chunk in chunks(*args, **kwargs):
            rename(chunk)
            yield chunk

    return renamed


def _buckets_renamed(send: Callable[..., None], rename: Rename) -> Callable[..., None]:
    """Return miles' `_update_expert_bucket_weights` with names changed in what it hands on."""

    def renamed(
        named_tensors: list[Any], update_bucket_weight_func: Callable[..., None], *args: Any, **kwargs: Any
    ) -> None:
        def update(weights: list[Any], *more: Any) -> None:
            rename(weights)
            update_bucket_weight_func(weights, *more)

        send(named_tensors, update, *args, **kwargs)

    return renamed


def _is_set(value: Any) -> bool:
    return any(value) if isinstance(value, list | tuple) else bool(value)


def config_file(checkpoint: str) -> str:
    """Return the folder of a checkpoint of Hugging Face, or the `config.json` of one that only has a name."""
    if Path(checkpoint).exists():
        return checkpoint
    from transformers.utils import cached_file

    return str(cached_file(checkpoint, "config.json"))


def _refused_in_slime(args: Any) -> Iterable[str]:
    if getattr(args, "megatron_deepgemm_moe_forward_layers", None):
        yield (
            "--megatron-deepgemm-moe-forward-layers, which replaces the forward of experts and dispatches tokens past "
            "the agent (leave it out)"
        )


def _refused_in_miles(args: Any) -> Iterable[str]:
    if args.qkv_format != "thd":
        yield f"--qkv-format {args.qkv_format} (use thd)"
    if getattr(args, "indep_dp", False):
        yield "--indep-dp, whose replicas train apart (leave it out)"
    if getattr(args, "rematerialize_param_from_master_weight", False):
        yield "--rematerialize-param-from-master-weight, which restores weights without their names (leave it out)"
    if getattr(args, "lora_rank", 0) or getattr(args, "lora_adapter_path", None):
        yield "--lora-rank or --lora-adapter-path, whose adapters are exported by place (train all weights)"
    if not args.colocate and args.update_weight_transfer_mode == "p2p":
        yield "--update-weight-transfer-mode p2p (use broadcast or disk-delta)"


def _batches_of_slime(
    layers: ModelLayers, rollout_data: Mapping[str, Any], iterators: Sequence[Any], num_microbatches: Sequence[int]
) -> Batches:
    kept = {key: rollout_data[key] for key in ("tokens", "rollout_routed_experts", "micro_batch_indices")}
    return partial(rank_batch, kept | {"num_microbatches": num_microbatches}, layers)


def _batches_of_miles(
    layers: ModelLayers, rollout_data: Mapping[str, Any], iterators: Sequence[Any], num_microbatches: Sequence[int]
) -> Batches:
    kept = {key: rollout_data[key] for key in ("tokens", "rollout_routed_experts")}
    return partial(rank_batch, with_micro_batches(kept, iterators[0], num_microbatches), layers)


def _replaying_of_slime() -> str:
    return os.environ["ROUTING_REPLAY_STAGE"] if os.environ.get("ENABLE_ROUTING_REPLAY") == "1" else ""


def _replaying_of_miles() -> str:
    manager = import_module("miles.utils.replay_base").routing_replay_manager
    return str(manager.stage) if manager.enabled else ""


SLIME = Framework(
    name="slime",
    version="slime 0.3.1, 624b824",
    package="slime.backends.megatron_utils",
    points={
        "actor": {**_ACTOR, "save_hf_model_to_path": ("args", "model", ...)},
        "model": _MODEL,
        "update_weight.update_weight_from_distributed": {"UpdateWeightFromDistributed._iter_expert_chunks": ()},
    },
    saving=("actor", "save_hf_model_to_path"),
    sending="_iter_expert_chunks",
    renaming=_chunks_renamed,
    refusals=_refused_in_slime,
    batches=_batches_of_slime,
    generating=("slime.rollout.sglang_rollout",),
    splitting="_split_train_data_by_dp",
    replaying=_replaying_of_slime,
)
MILES = Framework(
    name="miles",
    version="miles 31f1ca9",
    package="miles.backends.megatron_utils",
    points={
        "actor": _ACTOR,
        "model": _MODEL,
        "hf_export": {"save_hf_model": ("args", "model", ...)},
        "update_weight.update_weight_from_distributed.mixin": {
            "DistBucketedWeightUpdateMixin._update_expert_bucket_weights": (
                "named_tensors",
                "update_bucket_weight_func",
                "pbar",
            ),
        },
    },
    saving=("hf_export", "save_hf_model"),
    sending="_update_expert_bucket_weights",
    renaming=_buckets_renamed,
    refusals=_refused_in_miles,
    batches=_batches_of_miles,
    generating=("miles.rollout.sglang_rollout", "miles.rollout.inference_rollout.inference_rollout_common"),
    splitting="miles.ray.rollout.train_data_conversion:split_train_data_by_dp_scheduled_raw",
    replaying=_replaying_of_miles,
)
