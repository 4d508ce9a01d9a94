"""Which layers of a model are MoE layers, as its `config.json` says it.

A configuration lists the layers, or gives rules that count them. A list overrules the rules, as in the models' code.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from relibra.errors import InvalidInput
from relibra.routing.config_numbers import is_int, number

MAX_LAYERS = 4096
_NUM_LAYERS = ("num_hidden_layers", "n_layers", "num_layers")

_BLOCK_KINDS = ("layers_block_type", "layer_types")
"""Kinds of layers in models whose MoE layers are layers of their own. Other models list kinds of attention here."""
_MLP_KINDS = {"dense": False, "sparse": True, "moe": True, "hash_moe": True}
"""Kinds of feed-forward parts. `hash_moe` looks a token's experts up in a table."""
_INDICES = ("moe_layers", "moe_layers_enum")

_FIRST = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
_STEP = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")

_LIST_KEYS = ("hybrid_override_pattern", *_BLOCK_KINDS, "mlp_layer_types", "moe_layer_freq", *_INDICES)
_RULE_KEYS = (*_FIRST, "moe_layer_end_index", *_STEP, "expert_layer_period", "expert_layer_offset", "mlp_only_layers")
_CHOOSES_LAYERS = re.compile(
    r"(moe|expert|sparse|dense).*(layer|block)s?($|_(freq|step|start|end|index|period|offset|interval|num|skip|enum))"
    r"|(moe|expert|sparse|dense).*_(freq|frequency|step|period|interval|offset)$"
)
"""A key with such a name seems to choose MoE layers. If relibra does not know it, the layers could be wrong."""


def moe_layers(config: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return for each transformer layer, in order, whether it is an MoE layer.

    Raises:
        InvalidInput: a key is missing or has a wrong value, two lists contradict each other, or a key that seems to
            choose MoE layers is unknown; the message names the key.
    """
    for key, value in config.items():
        is_set = value is not None and not isinstance(value, bool)
        if is_set and key not in (*_LIST_KEYS, *_RULE_KEYS) and _CHOOSES_LAYERS.search(key):
            raise InvalidInput.of(
                key,
                expected="no key that chooses MoE layers and that relibra does not know; give the layers by numbers",
                got=value,
            )
    listed = _layers_by_list(config)
    num_layers = _num_layers(config, default=len(next(iter(listed.values()))) if listed else None)
    for key in _INDICES:
        if config.get(key) is not None:
            listed[key] = _layers_at(key, config[key], num_layers)
    for key, is_moe in listed.items():
        if len(is_moe) != num_layers:
            raise InvalidInput.of(key, expected=f"one entry for each of {num_layers} layers", got=len(is_moe))
    if len(set(listed.values())) > 1:
        raise InvalidInput.of(
            " and ".join(listed), expected="the same MoE layers", got=" and ".join(str(config[key]) for key in listed)
        )
    return next(iter(listed.values())) if listed else _layers_by_rules(config, num_layers)


def _num_layers(config: Mapping[str, Any], default: int | None) -> int:
    numbers = {key: config[key] for key in _NUM_LAYERS if is_int(config.get(key))}
    if len(set(numbers.values())) > 1:
        raise InvalidInput.of(" and ".join(numbers), expected="one number of layers", got=list(numbers.values()))
    num_layers = number(config, _NUM_LAYERS, default)
    if not 1 <= num_layers <= MAX_LAYERS:
        raise InvalidInput.of("num_hidden_layers", expected=f"1 to {MAX_LAYERS}", got=num_layers)
    return num_layers


def _layers_by_list(config: Mapping[str, Any]) -> dict[str, tuple[bool, ...]]:
    """Return the MoE layers by the key that has an entry for each layer."""
    listed: dict[str, tuple[bool, ...]] = {}
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        listed["hybrid_override_pattern"] = tuple(letter == "E" for letter in pattern)
    for key in _BLOCK_KINDS:
        kinds = config.get(key)
        if _is_list(kinds) and "moe" in kinds:
            listed[key] = tuple(kind == "moe" for kind in kinds)
    kinds = config.get("mlp_layer_types")
    if kinds is not None:
        if not _is_list(kinds) or not all(isinstance(kind, str) and kind in _MLP_KINDS for kind in kinds):
            raise InvalidInput.of("mlp_layer_types", expected=f"a list of {' or '.join(_MLP_KINDS)}", got=kinds)
        listed["mlp_layer_types"] = tuple(_MLP_KINDS[kind] for kind in kinds)
    flags = config.get("moe_layer_freq")
    if _is_list(flags):
        listed["moe_layer_freq"] = tuple(bool(flag) for flag in flags)
    return listed


def _layers_at(key: str, indices: Any, num_layers: int) -> tuple[bool, ...]:
    """Return the MoE layers that are given by their numbers, in a list or as text such as `4,5,6`."""
    try:
        chosen = {int(index) for index in (indices.split(",") if isinstance(indices, str) else indices)}
    except (TypeError, ValueError):
        chosen = {-1}
    if not chosen <= set(range(num_layers)):
        raise InvalidInput.of(key, expected=f"numbers of layers from 0 to {num_layers - 1}", got=indices)
    return tuple(layer in chosen for layer in range(num_layers))


def _layers_by_rules(config: Mapping[str, Any], num_layers: int) -> tuple[bool, ...]:
    """Return the layers that all rules of the configuration make MoE layers."""
    first = max(_rule(config, key, default=0, at_least=0) for key in _FIRST)
    last = _rule(config, "moe_layer_end_index", default=-1, at_least=-1)
    frequency = _rule(config, "moe_layer_freq", default=1, at_least=1)
    steps = [_rule(config, key, default=1, at_least=1) for key in _STEP]
    period = _rule(config, "expert_layer_period", default=1, at_least=1)
    offset = _rule(config, "expert_layer_offset", default=0, at_least=0)
    dense = config.get("mlp_only_layers") or ()
    if not _is_list(dense):
        raise InvalidInput.of("mlp_only_layers", expected="a list of layers", got=dense)
    return tuple(
        first <= layer <= (num_layers - 1 if last == -1 else last)
        and layer % frequency == 0
        and all((layer + 1) % step == 0 for step in steps)
        and layer % period == offset
        and layer not in dense
        for layer in range(num_layers)
    )


def _rule(config: Mapping[str, Any], key: str, *, default: int, at_least: int) -> int:
    value = config.get(key)
    if value is None:
        return default
    if not is_int(value) or value < at_least:
        raise InvalidInput.of(key, expected=f"a whole number of at least {at_least}", got=value)
    return value


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)
