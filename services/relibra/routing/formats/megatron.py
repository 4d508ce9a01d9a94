"""Megatron's `router_trace` files of JSON lines: one record for every rank, router and forward pass.

A record has the tokens that the router saw on its rank.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.routing.sequence_routing import as_integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedForward:
    """The tokens that one rank of every pipeline stage routed in one forward pass."""

    micro_batch: int
    """The number of forward passes before this one."""
    source_rank: int
    """The position of the rank within its stage."""
    routed_TLK: NDArray[np.integer]


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
    _check_stages(in_order, [len(stages[stage]) for stage in in_order])
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
        for position, ranks in enumerate(zip(*(stages[stage] for stage in in_order), strict=True))
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
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1 or arrays[0].ndim != 2:
        raise InvalidInput.of(field, expected="the same [tokens, K] in every layer", got=sorted(shapes))
    extremes = [extreme for array in arrays for extreme in (int(array.min(initial=0)), int(array.max(initial=0)))]
    dtype = np.result_type(np.min_scalar_type(min(extremes)), np.min_scalar_type(max(extremes)))
    # Routers record int64. Narrowing each array before interleaving moves an eighth of the bytes.
    return np.stack([array.astype(dtype) for array in arrays], axis=1)
