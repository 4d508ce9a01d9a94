"""What training processes tell the driver, and what rank 0 says if no driver asks."""

import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from relibra.planning import Cluster
from relibra.plugins.settings import PluginSettings
from relibra.plugins.verl import trained_job as module
from relibra.plugins.verl.trained_job import TrainedJob, TrainingProcess, trained_job
from relibra.routing import ModelLayers
from relibra.steps.parallel_layout import ParallelLayout

RANKS = ParallelLayout(data=4, expert=4)
LAYERS = ModelLayers.uniform(num_layers=2, num_experts=8, top_k=2)


def process(monkeypatch: pytest.MonkeyPatch, *, rank: int = 0, **given: Any) -> TrainingProcess:
    monkeypatch.setattr(module, "dist", SimpleNamespace(get_rank=lambda: rank))
    monkeypatch.setattr(module, "parallel_layout", lambda: RANKS)
    monkeypatch.setattr(TrainingProcess, "current", None)
    monkeypatch.setenv("RELIBRA_TOKEN", "secret")
    planned = SimpleNamespace(
        settings=PluginSettings(planner="planner:7420", job="job", pack=True),
        attempt="launch",
        cluster=Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1),
        is_registered=True,
    )
    settings = PluginSettings(**{"planner": "planner:7420", "job": "job", "pack": True} | given)
    passes: Any = SimpleNamespace(planned=planned, layers=LAYERS, next_index=7)
    return TrainingProcess(settings, passes)


def test_the_driver_learns_the_job_and_its_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    process(monkeypatch)
    told = trained_job(object())
    assert isinstance(told, TrainedJob)
    assert (told.settings.planner, told.attempt, told.ranks, told.layers) == ("planner:7420", "launch", RANKS, LAYERS)
    assert (told.next_step, told.is_registered, told.token) == (7, True, None)
    assert pickle.loads(pickle.dumps(told)) == told


def test_the_token_is_told_only_of_a_planner_that_the_job_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    told = process(monkeypatch, planner="embedded").answer()
    assert told.token == "secret"
    assert "secret" not in repr(told)


def test_a_process_without_an_engine_of_relibra_has_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingProcess, "current", None)
    assert trained_job(object()) is None


@pytest.mark.parametrize(
    ("is_asked", "rank", "given", "num_said"),
    [(False, 0, {}, 1), (True, 0, {}, 0), (False, 1, {}, 0), (False, 0, {"pack": False}, 0)],
)
def test_S9_rank_0_says_once_that_no_driver_asks(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_asked: bool,
    rank: int,
    given: dict[str, Any],
    num_said: int,
) -> None:
    running = process(monkeypatch, rank=rank, **given)
    with caplog.at_level(logging.WARNING):
        if is_asked:
            running.answer()
        for _ in range(3):
            running.note_pass()
    assert caplog.text.count("verl's driver has not asked") == num_said
