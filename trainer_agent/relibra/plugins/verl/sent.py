"""`install_in_sender`: the plug-in and its settings travel to the critic's workers.

verl imports `external_lib` where it builds the configuration of a model: for the critic, in the driver alone. Its
workers get an object of verl's `TrainingWorkerConfig`, which names no planner. So the driver sends this object together
with the settings, and the process that unpacks it turns the plug-in on.
"""

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from relibra.plugins.verl.configuration import find_configuration, relibra_section

_MODULE = "verl.workers.config"
received: Mapping[str, Any] = {}
"""The part of verl's configuration that came with that of a worker; empty if none has come."""


def install_in_sender() -> None:
    """Have verl's `TrainingWorkerConfig` of this process take the settings along, wherever it is sent."""
    config = getattr(sys.modules.get(_MODULE), "TrainingWorkerConfig", None)
    if config is not None:
        config.__reduce_ex__ = _reduce


def _reduce(self: Any, protocol: Any) -> Any:
    configuration = find_configuration()
    trainer = configuration.get("trainer") or {}
    sent = {
        "relibra": dict(relibra_section(configuration)),
        "trainer": {name: trainer.get(name) for name in ("project_name", "experiment_name")},
    }
    return receive, (sent if configuration else {}, type(self), vars(self))


def receive(configuration: Mapping[str, Any], config: type[Any], values: Mapping[str, Any]) -> Any:
    """Turn the plug-in on in this process, and return what the driver has sent.

    Args:
        configuration: becomes `received`, unless it is empty.
        config: the class `TrainingWorkerConfig`.
        values: the attributes of its object.
    """
    global received
    received = configuration or received
    importlib.import_module("verl.workers.engine_workers")  # the plug-in looks for it in this process
    importlib.import_module("relibra.integrations.verl")
    made = object.__new__(config)
    vars(made).update(values)
    return made
