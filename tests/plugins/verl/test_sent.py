"""The configuration of a critic's worker, as one process sends it and another one receives it."""

import importlib
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from relibra.plugins.verl import sent
from relibra.plugins.verl.configuration import default_job, relibra_section


class TrainingWorkerConfig:
    """verl's, as far as it is sent."""

    def __init__(self, model_type: str) -> None:
        self.model_type = model_type


class Configuration(dict[str, Any]):
    """verl's whole configuration."""

    def _get_root(self) -> "Configuration":
        return self


class Trainer:
    def __init__(self, **configuration: Any) -> None:
        self.config = Configuration(configuration)

    def send(self, value: Any) -> bytes:
        return pickle.dumps(value)


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield a list that gets the modules that are imported when a configuration is received."""
    modules: list[str] = []
    loaded: Any = ModuleType("verl.workers.config")
    loaded.TrainingWorkerConfig = TrainingWorkerConfig
    monkeypatch.setitem(sys.modules, loaded.__name__, loaded)
    monkeypatch.setattr(importlib, "import_module", modules.append)
    monkeypatch.setattr(sent, "received", {})
    sent.install_in_sender()
    yield modules
    del TrainingWorkerConfig.__reduce_ex__


def test_a_configuration_brings_the_plug_in_and_its_settings_along(imported: list[str]) -> None:
    trainer = Trainer(relibra={"planner": "planner:7420"}, trainer={"project_name": "rl", "experiment_name": "1"})
    bytes_ = trainer.send(TrainingWorkerConfig("value_model"))
    assert imported == []
    got = pickle.loads(bytes_)
    assert (type(got), got.model_type) == (TrainingWorkerConfig, "value_model")
    assert imported == ["verl.workers.engine_workers", "relibra.integrations.verl"]
    assert relibra_section(sent.received) == {"planner": "planner:7420"}
    assert default_job(sent.received) == "rl-1"


def test_a_configuration_that_no_trainer_sends_changes_no_settings(imported: list[str]) -> None:
    Trainer().send(TrainingWorkerConfig("value_model"))
    pickle.loads(Trainer(relibra={"planner": "planner:7420"}).send(TrainingWorkerConfig("value_model")))
    got = pickle.loads(pickle.dumps(TrainingWorkerConfig("language_model")))
    assert got.model_type == "language_model"
    assert relibra_section(sent.received) == {"planner": "planner:7420"}
