"""The settings of verl that the engine of the plug-in refuses when it starts."""

from types import SimpleNamespace
from typing import Any

import pytest

from relibra.errors import RelibraError
from relibra.plugins.verl.engine import checked_mode

MODEL = SimpleNamespace(experimental_attention_variant=None)
DSV4 = SimpleNamespace(experimental_attention_variant="dsv4_hybrid")


def engine_config(mode: str = "R3", **changed: Any) -> SimpleNamespace:
    given = {
        "use_remove_padding": True,
        "dynamic_context_parallel": False,
        "pad_to_length": False,
        "context_parallel_size": 2,
        "router_replay": SimpleNamespace(mode=mode),
    }
    return SimpleNamespace(**given | changed)


@pytest.mark.parametrize("mode", ["R3", "R2"])
def test_routing_that_is_replayed_is_planned(mode: str) -> None:
    assert checked_mode(engine_config(mode), MODEL) == mode
    assert checked_mode(engine_config(mode, context_parallel_size=1), DSV4) == mode


@pytest.mark.parametrize(
    ("changed", "model", "named"),
    [
        ({"use_remove_padding": False}, MODEL, "use_remove_padding=True"),
        ({"dynamic_context_parallel": True}, MODEL, "dynamic_context_parallel=False"),
        ({"pad_to_length": True}, MODEL, "pad_to_length=False"),
        ({}, DSV4, "context_parallel_size=1 with dsv4_hybrid"),
        ({"mode": "disabled"}, MODEL, "router_replay.mode"),
    ],
)
def test_S9_a_setting_that_is_not_planned_is_refused_by_its_name(
    changed: dict[str, Any], model: SimpleNamespace, named: str
) -> None:
    with pytest.raises(RelibraError, match=named):
        checked_mode(engine_config(**changed), model)
