"""Wrapped functions work in an actor of Ray, whose class Ray has taken apart before the plug-in is installed."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from relibra.plugins.slime import installation
from relibra.plugins.slime.framework import MILES, SLIME


class Actor:
    """The class of a framework's actor."""

    def init(self, updater: Any) -> None:
        self.weight_updater = updater

    def has_updater(self) -> bool:
        return hasattr(self, "weight_updater")


def modules_of(framework: Any, iterators: Any) -> dict[str, Any]:
    """Return stand-ins for a framework's modules."""
    found: dict[str, Any] = {}
    for name, points in framework.points.items():
        module = found[name] = SimpleNamespace()
        for path in points:
            if "." not in path:
                setattr(module, path, lambda *_, **__: None)
    found["actor"].TensorBackuper = SimpleNamespace(create=lambda: None)
    found["actor"].MegatronTrainRayActor = Actor
    found["actor"].get_data_iterator = lambda *_: iterators
    return found


@pytest.mark.parametrize(
    ("framework", "arguments", "iterators"),
    [(SLIME, (), ["iterator"]), (MILES, ("args", "model"), (["iterator"], [2, 1]))],
    ids=["slime", "miles"],
)
def test_the_routing_of_a_rollout_and_the_sender_of_weights_are_seen_without_a_method_of_the_actor(
    framework: Any, arguments: tuple[str, ...], iterators: Any
) -> None:
    methods_that_ray_has_taken = {name: each for name, each in vars(Actor).items() if callable(each)}
    training = mock.Mock()
    modules = modules_of(framework, iterators)
    with mock.patch.object(installation, "_training", training):
        installation._wrap_all(framework, modules)
        rollout = {"num_microbatches": [2, 1], "rollout_routed_experts": []}
        assert modules["actor"].get_data_iterator(*arguments, rollout) == iterators
        training.note_rollout.assert_called_once_with(rollout, ["iterator"], [2, 1])
        without_routing = {"num_microbatches": [2, 1]}
        modules["actor"].get_data_iterator(*arguments, without_routing)
        assert training.note_rollout.call_args.args == (without_routing, ["iterator"], [2, 1])

        actor = Actor()
        assert not methods_that_ray_has_taken["has_updater"](actor)
        methods_that_ray_has_taken["init"](actor, "updater")
        assert actor.weight_updater == "updater"
        training.send_right_names.assert_called_once_with("updater")
