"""Megatron: one array per router (`RouterReplay`), and `router_trace` files of JSON lines.

`RouterReplay` holds an array `[tokens, K]` for every router of a pipeline stage, in the order in which the routers were
built; those of multi-token prediction are last. A trace has one record for every rank, router and forward pass, with
the tokens that the router saw on that rank.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting, as_integers, sequence_routing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedForward:
    """The tokens that one rank of every pipeline stage routed in one forward pass."""

    micro_batch: int
    """The number of forward passes before this one."""
    source_rank: int
    """The position of the rank within its stage."""
    routed_TLK: NDArray[np.integer]


def decode_replay(
    stages: Sequence[Sequence[Any]], layers: ModelLayers, stage_layers: Sequence[Sequence[int]] | None = None
) -> SequenceRouting:
    """Decode the arrays `[tokens, K]` of all routers, stage by stage.

    The tokens are those of one rank. All of them have a route, the last token too.

    Args:
        stages: the arrays of every pipeline stage.
        layers: the layers of the model.
        stage_layers: the MoE layer of every array, from `stage_routers`; by default stages hold consecutive layers.

    Raises:
        InvalidInput: the number of routers is not the model's, or the arrays differ in shape.
    """
    if stage_layers is None:
        stage_layers = [list(range(layers.num_moe_layers))]
        stages = [[each for arrays in stages for each in arrays]]
    by_layer: dict[int, NDArray[np.integer]] = {}
    for stage, (arrays, moe_layers) in enumerate(zip(stages, stage_layers, strict=True)):
        if len(arrays) not in (len(moe_layers), len(moe_layers) + layers.num_mtp_layers):
            raise InvalidInput.of(f"routers of stage {stage}", expected=f"{len(moe_layers)} arrays", got=len(arrays))
        for index, (layer, array) in enumerate(zip(moe_layers, arrays, strict=False)):
            by_layer[layer] = as_integers(array, f"routers of stage {stage}[{index}]")
    ids_TLK = _stack([by_layer[layer] for layer in sorted(by_layer)], "routers")
    return sequence_routing(ids_TLK, layers, num_tokens=len(ids_TLK) + 1, start=0, field="routers")


def decode_trace(records: Iterable[Mapping[str, Any]]) -> list[TracedForward]:
    """Combine the records in the `router_trace_rank*.jsonl` of all ranks.

    The nth record of a rank and layer belongs to the nth forward pass. Ranks with the same layers are one pipeline
    stage. By Megatron's order of ranks, the ith rank of every stage has the same tokens. Records of multi-token
    prediction are left out.

    Raises:
        InvalidInput: a record lacks a field, or stages, layers or passes do not fit each other.
    """
    by_rank: dict[int, dict[int, list[NDArray[np.integer]]]] = defaultdict(lambda: defaultdict(list))
    for index, record in enumerate(records):
        if record.get("block") == "mtp":
            continue
        for key in ("rank", "layer"):
            if not isinstance(record.get(key), int):
                raise InvalidInput.of(f"record {index}.{key}", expected="a whole number", got=record.get(key))
        ids_TK = as_integers(record.get("top_indices", ""), f"record {index}.top_indices")
        if ids_TK.ndim != 2 or (ids_TK.size and ids_TK.min() < 0):
            raise InvalidInput.of(f"record {index}.top_indices", expected="expert ids [tokens, K]", got=ids_TK.shape)
        by_rank[record["rank"]][record["layer"]].append(ids_TK)
    if not by_rank:
        raise InvalidInput.of("router_trace", expected="records of decoder layers", got="none")
    stages: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in sorted(by_rank):
        stages[tuple(sorted(by_rank[rank]))].append(rank)
    in_order = sorted(stages)
    _check_stages(in_order, [len(stages[each]) for each in in_order])
    num_passes = {len(passes) for by_layer in by_rank.values() for passes in by_layer.values()}
    if len(num_passes) > 1:
        raise InvalidInput.of(
            "router_trace", expected="the same number of passes for every rank and layer", got=sorted(num_passes)
        )
    return [
        TracedForward(
            micro_batch=micro_batch,
            source_rank=position,
            routed_TLK=_stack(
                [
                    by_rank[rank][layer][micro_batch]
                    for layers, rank in zip(in_order, ranks, strict=True)
                    for layer in layers
                ],
                f"router_trace, pass {micro_batch} of ranks {list(ranks)}",
            ),
        )
        for micro_batch in range(num_passes.pop())
        for position, ranks in enumerate(zip(*(stages[each] for each in in_order), strict=True))
    ]


def _check_stages(layers_of_stage: list[tuple[int, ...]], num_ranks: list[int]) -> None:
    seen = [layer for layers in layers_of_stage for layer in layers]
    if len(set(seen)) != len(seen):
        raise InvalidInput.of("router_trace", expected="no layer in several stages", got=layers_of_stage)
    if len(set(num_ranks)) > 1:
        raise InvalidInput.of(
            "router_trace",
            expected="the same number of ranks in every stage; give the files of all ranks",
            got=num_ranks,
        )


def _stack(arrays: list[NDArray[np.integer]], field: str) -> NDArray[np.integer]:
    shapes = {each.shape for each in arrays}
    if len(shapes) > 1 or arrays[0].ndim != 2:
        raise InvalidInput.of(field, expected="the same [tokens, K] in every layer", got=sorted(shapes))
    extremes = [extreme for each in arrays for extreme in (int(each.min(initial=0)), int(each.max(initial=0)))]
    dtype = np.result_type(np.min_scalar_type(min(extremes)), np.min_scalar_type(max(extremes)))
    # Routers record int64. Narrowing each array before interleaving moves an eighth of the bytes.
    return np.stack([each.astype(dtype) for each in arrays], axis=1)
