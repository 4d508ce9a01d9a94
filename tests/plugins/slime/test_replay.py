"""Routers with replays as slime and miles register them, and what an agent hears of these before a forward."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from relibra.plugins.slime.replay import listen_to_replays


class Layer:
    """Keeps what tells it of a replay."""

    def listen(self, replayed: Callable[[], Any]) -> None:
        self.replayed = replayed


def built(layers: dict[int, Layer], stage: str, *replays: Any) -> None:
    routers = [nn.Identity() for _ in layers]
    for router, replay in zip(routers, replays, strict=False):
        vars(router)["routing_replay"] = replay
    listen_to_replays(SimpleNamespace(layers=layers), [nn.Sequential(*routers)], lambda: stage)  # type: ignore[arg-type]


def replay(*recorded: list[list[int]], index: int = 0) -> Any:
    rows = [torch.tensor(each, dtype=torch.int32) for each in recorded]
    return SimpleNamespace(top_indices_list=rows, forward_index=index, backward_index=0)


def test_each_layer_hears_what_its_router_takes_next() -> None:
    layers = {4: Layer(), 2: Layer()}
    built(layers, "replay_forward", replay([[1, 2]], [[3, 0]], index=1), replay([[5, 6], [-1, -1]]))
    told = [layers[index].replayed().tolist() for index in (2, 4)]
    assert told == [[[3, 0]], [[5, 6], [0, 1]]], "miles sends tokens without routes to the first experts"


def test_nothing_is_told_where_routers_decide() -> None:
    layers = {0: Layer(), 1: Layer()}
    built(layers, "record", replay([[1, 2]]), replay([[1, 2]]))
    assert [layer.replayed() for layer in layers.values()] == [None, None]
    built(layers, "replay_forward", replay(), replay([[1, 2]], index=1))
    assert [layer.replayed() for layer in layers.values()] == [None, None]


def test_a_model_whose_routers_do_not_all_replay_is_left_as_it_is() -> None:
    layers = {0: Layer(), 1: Layer()}
    built(layers, "replay_forward", replay([[1, 2]]))
    assert not any(hasattr(layer, "replayed") for layer in layers.values())
