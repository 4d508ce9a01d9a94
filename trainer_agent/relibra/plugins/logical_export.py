"""The export of a framework, which names experts by place, under the names of the experts, while no expert moves.

L MoE layers, E experts.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from relibra.agent import Agent
from relibra.errors import InvalidInput, Unsupported
from relibra.routing import ModelLayers

_EXPERTS = re.compile(r"(.*?(?:^|\.)layers\.(\d+)\.(?:.*\.)?experts\.)(.+)")
_HAS_EXPERTS = re.compile(r"(?:^|\.)experts(?:\.|$)")
_SHARED = re.compile(r"(?:^|\.)shared_experts?\.")
_PREDICTS_TOKENS = re.compile(r"(?:^|\.)mtp\w*\.")
_ONE_EXPERT = re.compile(r"(\d+)(\..+)")
_ALL_EXPERTS = re.compile(r"(?!linear_fc|local_experts|weight)[a-z]\w*(?:\.weight|\.bias)?", re.IGNORECASE)


class Renamed(Protocol):
    """A function that gives every expert of a stream its own name; `logical` with a table and layers."""

    def __call__(self, weights: Iterable[tuple[str, Any]], *, is_whole: bool = True) -> Iterator[tuple[str, Any]]:
        """Return the stream under logical names."""


@contextmanager
def exporting(agent: Agent, layers: ModelLayers) -> Iterator[Renamed]:
    """Collective over all ranks: export by place in the body, and send what the yielded function returns.

    The names come in another order than the framework's own. So a receiver must get them with the tensors, and not know
    them from an earlier export.

    Raises:
        RelibraError: on all ranks, if the modules of one hold weights that were written behind the agent's back; or if
            experts moved in the body.
    """
    agent.check_weights()  # a rank that raised alone would leave the others in the collectives of the export
    with agent.copying() as order:
        yield partial(logical, expert_of_place_LE=order.expert_of_place_LE, layers=layers)


def logical_export(
    agent: Agent, layers: ModelLayers, weights: Iterable[tuple[str, Any]], *, is_whole: bool = True
) -> Iterator[tuple[str, Any]]:
    """Yield a framework's stream with each expert under its own name. The first read is collective over all ranks.

    Args:
        agent: the agent of this rank.
        layers: the layers of the model.
        weights: the stream, which names experts by place as Hugging Face does.
        is_whole: whether the stream has all weights of the model; see `logical`.

    Raises:
        RelibraError: see `exporting`.
        Unsupported: a name of experts cannot be understood; see `logical`.
    """
    with exporting(agent, layers) as renamed:
        yield from renamed(weights, is_whole=is_whole)


def logical(
    weights: Iterable[tuple[str, Any]],
    expert_of_place_LE: NDArray[np.integer],
    layers: ModelLayers,
    *,
    is_whole: bool = True,
) -> Iterator[tuple[str, Any]]:
    """Return a stream of weights under Hugging Face names that give every expert its logical number.

    An exporter of a framework (Megatron-Bridge, mbridge or its own code) numbers experts by place. After a reorder,
    `experts.5` in its stream is the expert that lives at place 5 now. Read the stream while the table holds:

        with agent.copying() as order:
            for name, tensor in logical(bridge.export_hf_weights(models), order.expert_of_place_LE, layers):
                ...

    A tensor that holds all experts of a layer is copied in logical order. All other tensors pass as they are. Experts
    of multi-token prediction never move, so they keep their names.

    Args:
        weights: names and tensors (torch or numpy); read once, one by one.
        expert_of_place_LE: the logical expert at every place, `[L, E]`, as `Agent.expert_of_place_LE`.
        layers: the layers of the model, which say what MoE layer a name means.
        is_whole: whether the stream has all weights of the model. A part of them, like a bucket, may have no experts.

    Raises:
        InvalidInput: at once, if the table does not fit the layers.
        Unsupported: while the stream is read, if a name of experts cannot be understood, or if experts have moved and
            a whole stream ends without any. The message has the name.
    """
    table_LE = np.asarray(expert_of_place_LE)
    expected = (layers.num_moe_layers, layers.num_experts)
    if table_LE.shape != expected or (np.sort(table_LE, axis=1) != np.arange(layers.num_experts)).any():
        raise InvalidInput.of(
            "expert_of_place_LE", expected=f"a permutation for each MoE layer, {expected}", got=table_LE.shape
        )
    return _rename(weights, table_LE, layers, is_whole)


def _rename(
    weights: Iterable[tuple[str, Any]], table_LE: NDArray[np.integer], layers: ModelLayers, is_whole: bool
) -> Iterator[tuple[str, Any]]:
    index_of_layer = {layer: index for index, layer in enumerate(np.flatnonzero(layers.is_moe).tolist())}
    has_experts = False
    for name, tensor in weights:
        if not _HAS_EXPERTS.search(name) or _SHARED.search(name):
            yield name, tensor
            continue
        has_experts = True
        if _PREDICTS_TOKENS.search(name):
            yield name, tensor
            continue
        match = _EXPERTS.fullmatch(name)
        if match is None:
            raise _refuse_name(name, "no number of a layer (layers.N)")
        before, layer, rest = match[1], int(match[2]), match[3]
        if layers.num_layers <= layer < layers.num_layers + layers.num_mtp_layers:
            yield name, tensor
        elif layer not in index_of_layer:
            raise _refuse_name(name, f"layer {layer}, which is none of the MoE layers {sorted(index_of_layer)}")
        else:
            yield _of_experts(name, before, rest, tensor, table_LE[index_of_layer[layer]])
    if is_whole and not has_experts and (table_LE != np.arange(layers.num_experts)).any():
        raise _refuse_name("the stream", "no tensor of experts at all, although experts have moved")


def _of_experts(
    name: str, before: str, rest: str, tensor: Any, expert_of_place_E: NDArray[np.integer]
) -> tuple[str, Any]:
    num_experts = len(expert_of_place_E)
    one = _ONE_EXPERT.fullmatch(rest)
    if one is not None:
        if int(one[1]) >= num_experts:
            raise _refuse_name(name, f"expert {one[1]} of {num_experts}")
        return f"{before}{expert_of_place_E[int(one[1])]}{one[2]}", tensor
    if _ALL_EXPERTS.fullmatch(rest) is None:
        raise _refuse_name(name, f"{rest}, which may number the experts of one rank")
    if tuple(tensor.shape[:1]) != (num_experts,):
        raise _refuse_name(name, f"shape {list(tensor.shape)}, which does not begin with the {num_experts} experts")
    if (expert_of_place_E == np.arange(num_experts)).all():
        return name, tensor
    return name, tensor[np.argsort(expert_of_place_E).tolist()]


def _refuse_name(name: str, got: str) -> Unsupported:
    return Unsupported(
        f"{name}: expected Hugging Face's name of one expert (…layers.N.….experts.E.…) or of a tensor whose first "
        f"dimension counts all experts, got {got}; export inside `with agent.at_original_places():` instead"
    )
