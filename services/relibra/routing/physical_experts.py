"""Physical experts of an engine: SGLang with EPLB may send their ids instead of the ids of the model's experts.

EPLB places copies of experts in *physical* slots. SGLang before 0.5.10 (on NPUs before 0.5.23) recorded the slots that
it dispatched to; later versions, and vLLM, record the router's *logical* choice. Physical ids look like logical ones
unless they are too large, so only the server can tell: `GET /server_info` (see `engine_server`), or `get_server_info`
of an engine in the process. The map is known if it never changes: with `--init-expert-location` and without
`--enable-eplb`. The info has the map if the option was given the JSON itself, and else the name of a file.

X transformer layers, L MoE layers, P physical experts, T rows, K top-k.
"""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput, Unsupported
from relibra.routing.config_numbers import number
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting, as_integers, check_sample

_LOGICAL_SINCE = {"npu": (0, 5, 23)}
_LOGICAL_SINCE_ELSEWHERE = (0, 5, 10)
_MAP = "physical_to_logical_map"


class Unasked(Enum):
    """Stands for the ids of an engine that nobody has asked about them; `None` says that they are logical."""

    UNASKED = "unasked"


UNASKED = Unasked.UNASKED
"""Nobody has asked the engine what its ids mean."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhysicalExperts:
    """The logical expert in every physical slot of an engine that sends physical ids."""

    layers: ModelLayers
    physical_to_logical_LP: NDArray[np.integer]

    def __post_init__(self) -> None:
        map_LP = self.physical_to_logical_LP
        num_experts = self.layers.num_experts
        for layer, map_P in enumerate(map_LP):
            if not np.array_equal(np.unique(map_P), np.arange(num_experts)):
                raise InvalidInput.of(
                    f"{_MAP}[{layer}]", expected=f"each of the experts 0 to {num_experts - 1} at least once", got=map_P
                )

    @classmethod
    def of(cls, layers: ModelLayers, physical_to_logical: Any) -> "PhysicalExperts":
        """Return the experts of a map for all layers alike `[P]`, of all layers `[X, P]`, or of MoE layers `[L, P]`.

        Raises:
            InvalidInput: the map has another shape, or lacks an expert of the model.
        """
        maps = as_integers(physical_to_logical, _MAP)
        if maps.ndim == 1:
            maps = np.tile(maps, (layers.num_moe_layers, 1))
        elif maps.ndim == 2 and len(maps) == layers.num_layers:
            maps = maps[np.array(layers.is_moe)]
        if maps.ndim != 2 or len(maps) != layers.num_moe_layers:
            raise InvalidInput.of(
                _MAP,
                expected=f"[physical experts], or [{layers.num_layers} layers or {layers.num_moe_layers} MoE layers, "
                "physical experts]",
                got=list(maps.shape),
            )
        return cls(layers=layers, physical_to_logical_LP=maps)

    @property
    def as_sent(self) -> ModelLayers:
        """The layers of the model with as many experts as the engine has slots, to decode what it sends."""
        return replace(self.layers, num_experts=self.physical_to_logical_LP.shape[1])

    def logical(self, routing: SequenceRouting) -> SequenceRouting:
        """Return a routing that was decoded by `as_sent` with the ids of the model's experts.

        Raises:
            InvalidInput: a token has an expert twice: the map is not the one that the engine used.
        """
        layer_L1 = np.arange(self.layers.num_moe_layers)[:, None]
        ids_TLK = self.physical_to_logical_LP[layer_L1, routing.routed_TLK].astype(self.layers.id_dtype)
        check_sample(ids_TLK, self.layers, f"routed_experts, through the {_MAP}")
        return replace(routing, layers=self.layers, routed_TLK=ids_TLK, is_logical=True)


def physical_experts(
    server_info: Mapping[str, Any], layers: ModelLayers, physical_to_logical: Any = None
) -> PhysicalExperts | None:
    """Return how to read the ids of an SGLang server; None if it sends the ids of the model's experts.

    Args:
        server_info: the answer to `GET /server_info`.
        layers: the layers of the model.
        physical_to_logical: the map in the file of `--init-expert-location`, if the server has one (`of` has the
            shapes). By default, the info must have the map.

    Raises:
        InvalidInput: this is no answer of SGLang, or the map is needed and missing, or does not fit.
        Unsupported: the server sends physical ids and moves experts while it serves, so that no map holds for all
            tokens; or its router chooses at random.
    """
    if "ep_dispatch_algorithm" not in server_info:
        raise InvalidInput.of(
            "server info", expected="the answer of SGLang to GET /server_info", got=", ".join(sorted(server_info))[:200]
        )
    algorithm, version = server_info["ep_dispatch_algorithm"], str(server_info.get("version"))
    if algorithm == "fake":
        raise Unsupported("SGLang runs with --ep-dispatch-algorithm fake, which routes at random; use another one")
    if algorithm is None or _sends_logical_ids(version, str(server_info.get("device"))):
        return None
    if server_info.get("enable_eplb"):
        raise Unsupported(
            f"SGLang {version} sends physical expert ids, and EPLB moves experts while it serves, so that the ids of a "
            "response have no single meaning; use SGLang 0.5.10 or later (on NPUs 0.5.23), or no --enable-eplb in "
            "rollouts"
        )
    location = server_info.get("init_expert_location", "trivial")
    if location == "trivial":
        num_slots = layers.num_experts + number(server_info, ["ep_num_redundant_experts"], default=0)
        physical_to_logical = np.arange(num_slots) % layers.num_experts
    elif physical_to_logical is None:
        physical_to_logical = _map_in(location, version)
    return PhysicalExperts.of(layers, physical_to_logical)


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of an engine's version.

    Raises:
        InvalidInput: the version does not begin with three numbers.
    """
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        raise InvalidInput.of("server info, version", expected="a version such as 0.5.15", got=version)
    return tuple(map(int, match.groups()))


def _sends_logical_ids(version: str, device: str) -> bool:
    return version_numbers(version) >= _LOGICAL_SINCE.get(device, _LOGICAL_SINCE_ELSEWHERE)


def _map_in(location: Any, version: str) -> Any:
    """Return the map of a server that was started with the map itself, and not with the name of a file."""
    given: Any = None
    if isinstance(location, str) and not location.endswith((".json", ".pt")):  # as SGLang tells files from JSON
        with contextlib.suppress(ValueError, RecursionError):
            given = json.loads(location)
    if isinstance(given, Mapping) and _MAP in given:
        return given[_MAP]
    if isinstance(given, Mapping) and "logical_count" in given:
        raise Unsupported(
            f"SGLang {version} sends physical expert ids, and computed their map from the logical_count of "
            "--init-expert-location, which no endpoint gives; use SGLang 0.5.10 or later (on NPUs 0.5.23), or start it "
            f"with a {_MAP}"
        )
    raise InvalidInput.of(
        _MAP,
        expected=f"the map in the server's --init-expert-location, as SGLang {version} sends physical expert ids",
        got=f"none, beside {location}",
    )
