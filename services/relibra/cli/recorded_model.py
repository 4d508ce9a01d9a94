"""What `relibra record` is told of the model and of the engine that was recorded."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relibra.errors import InvalidInput
from relibra.routing import ModelLayers, read_model_config
from relibra.routing.engine_server import ask_engine
from relibra.routing.physical_experts import UNASKED, PhysicalExperts, Unasked, physical_experts


def model_of_options(
    config: Path | None, layers: int | None, experts: int | None, top_k: int | None, dense_layers: str
) -> ModelLayers:
    """Return the layers in the `config.json`, or of the numbers that were given instead.

    Raises:
        InvalidInput: neither is given, or a value is wrong; the message names the option.
    """
    if config is not None:
        return read_model_config(config)
    if layers is None or experts is None or top_k is None:
        raise InvalidInput.of(
            "--model-config", expected="the model's config.json, or --layers, --experts and --top-k", got="neither"
        )
    if not 1 <= layers <= 4096:
        raise InvalidInput.of("--layers", expected="1 to 4096", got=layers)
    dense = _layer_numbers(dense_layers, layers)
    return ModelLayers(num_experts=experts, top_k=top_k, is_moe=tuple(layer not in dense for layer in range(layers)))


def physical_experts_of_options(
    server: str | None, server_info: Path | None, expert_map: Path | None, model: ModelLayers
) -> PhysicalExperts | Unasked | None:
    """Return how to read the ids of the engine at an address, or of the SGLang server whose info a file holds.

    Without either, nobody has asked.

    Raises:
        InvalidInput: options contradict each other, a file is no JSON object, or see `ask_engine`.
        Unauthenticated: see `ask_engine`; the key is in the environment.
        Unavailable: see `ask_engine`.
        Unsupported: see `ask_engine`.
    """
    if server is not None and server_info is not None:
        raise InvalidInput.of("--server", expected="no --server-info beside it", got=server_info)
    if server is None and server_info is None:
        if expert_map is not None:
            raise InvalidInput.of("--expert-map", expected="--server or --server-info beside it", got="neither")
        return UNASKED
    given = None if expert_map is None else _json_object(expert_map).get("physical_to_logical_map")
    if expert_map is not None and given is None:
        raise InvalidInput.of("--expert-map", expected="JSON with a physical_to_logical_map", got=expert_map)
    if server is not None:
        return ask_engine(server, model, given, api_key=os.environ.get("RELIBRA_ENGINE_API_KEY"))
    assert server_info is not None
    return physical_experts(_json_object(server_info), model, given)


def _json_object(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput.of(str(path), expected="a JSON file", got=error) from error
    if not isinstance(value, Mapping):
        raise InvalidInput.of(str(path), expected="a JSON object", got=f"a {type(value).__name__}")
    return value


def _layer_numbers(text: str, num_layers: int) -> set[int]:
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        try:
            span = range(int(first), int(last or first) + 1)
        except ValueError:
            span = range(0)
        if not span or span[0] < 0 or span[-1] >= num_layers:
            raise InvalidInput.of("--dense-layers", expected=f"layers 0 to {num_layers - 1}, as 0,1,2 or 0-2", got=part)
        numbers.update(span)
    return numbers
