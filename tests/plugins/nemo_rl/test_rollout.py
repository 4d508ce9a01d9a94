"""A driver whose rollouts work as NeMo-RL's do: samples end one by one, and a validation runs the same rollouts."""

import asyncio
import sys
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from harness.framework_batches import LAYERS, nemo_batch
from relibra.errors import Unsupported
from relibra.plugins.nemo_rl import rollout
from relibra.plugins.nemo_rl.batch import rank_batch
from relibra.plugins.rollout_job import RolloutJob
from relibra.plugins.rollout_stream import RolloutStream
from relibra.wire.credentials import Credentials

BATCH = nemo_batch(0)
LENGTHS = BATCH["input_lengths"].tolist()
LOST = {"role": "user", "token_ids": torch.tensor([5])}


def message_log(index: int) -> list[dict[str, Any]]:
    """Return a sample as a prompt of three tokens and a response."""
    length = LENGTHS[index]
    tokens, routed = BATCH["input_ids"][index, :length], BATCH["routed_experts"][index, :length]
    spans = [("user", slice(3)), ("assistant", slice(3, None))]
    return [{"role": role, "token_ids": tokens[span], "routed_experts": routed[span]} for role, span in spans]


def rollouts_of(logs: list[list[dict[str, Any]]]) -> ModuleType:
    module = ModuleType("nemo_rl.experience.rollouts")

    async def run_sample_multi_turn_rollout(sample_idx: int) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"message_log": logs[sample_idx]}, {}

    async def run_all() -> list[Any]:
        return await asyncio.gather(*(module.run_sample_multi_turn_rollout(index) for index in range(len(logs))))

    module.run_sample_multi_turn_rollout = run_sample_multi_turn_rollout  # type: ignore[attr-defined]
    module.run = lambda: asyncio.run(run_all())  # type: ignore[attr-defined]
    return module


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """The modules of rollouts and of an algorithm, wrapped."""
    rollouts = rollouts_of([message_log(0), [*message_log(1), LOST], message_log(2)])
    algorithm = ModuleType("nemo_rl.algorithms.grpo")
    algorithm.validate = rollouts.run  # type: ignore[attr-defined]
    for module in (rollouts, algorithm):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    rollout.install_in_rollout()
    return rollouts, algorithm


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    stream = mock.Mock()
    monkeypatch.setattr(rollout, "stream", lambda: stream)
    return stream


def test_samples_are_reported_where_they_end_as_training_reads_them(
    driver: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout.install_in_rollout()  # a second policy
    job = RolloutJob(planner="127.0.0.1:1", job="job", attempt="this", layers=LAYERS, credentials=Credentials())
    stream = RolloutStream(lambda: job)
    monkeypatch.setattr(rollout, "stream", lambda: stream)
    with mock.patch("relibra.plugins.rollout_job.RolloutReporter") as reporter:
        assert len(driver[0].run()) == 3
    trained = rank_batch(BATCH, LAYERS)
    reports = [call.args for call in reporter.return_value.report.call_args_list]
    assert [name for _, name, _ in reports] == [trained.names[0], trained.names[2]]
    for (_, _, rows), index in zip(reports, (0, 2), strict=True):
        np.testing.assert_array_equal(rows, trained.routings[index].routed_TLK)


def test_a_validation_reports_nothing(driver: tuple[ModuleType, ModuleType], stream: mock.Mock) -> None:
    driver[1].validate()
    assert not stream.mock_calls
    driver[0].run()
    assert len(stream.mock_calls) == 2


def test_a_version_without_the_function_of_a_sample_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("nemo_rl.experience.rollouts")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(Unsupported, match=r"nemo_rl\.experience\.rollouts lacks run_sample_multi_turn_rollout"):
        rollout.install_in_rollout()
