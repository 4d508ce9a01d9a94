"""A module that generates samples as those of slime and miles do: through a global that relibra wraps."""

import asyncio
import sys
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from relibra.plugins.slime import rollout

NAME = "framework_that_generates"


class Status(Enum):
    """The status of a sample, with the values of both frameworks."""

    COMPLETED = "completed"
    ABORTED = "aborted"


def sample(tokens: list[int], status: Status = Status.COMPLETED) -> SimpleNamespace:
    return SimpleNamespace(tokens=tokens, rollout_routed_experts="routes", status=status)


@pytest.fixture
def generating(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module; `generated` says what its function returns."""
    module: Any = ModuleType(NAME)

    async def generate_and_rm(args: Any, one: Any, params: Any, evaluation: bool = False) -> Any:
        return module.generated

    module.generate_and_rm = generate_and_rm
    monkeypatch.setitem(sys.modules, NAME, module)
    module.stream = mock.Mock()
    monkeypatch.setattr(rollout, "stream", lambda: module.stream)
    return module


def test_every_finished_sample_of_a_rollout_is_reported_once(generating: Any) -> None:
    for _ in range(2):  # training processes may start again
        rollout.report_samples(None, [NAME, "a_module_that_this_version_lacks"])
    generating.generated = [sample([1]), [sample([2]), sample([3], Status.ABORTED)]]
    assert asyncio.run(generating.generate_and_rm(None, None, None)) is generating.generated
    assert generating.stream.mock_calls == [mock.call.report([first], "routes") for first in (1, 2)]


def test_an_evaluation_reports_nothing(generating: Any) -> None:
    rollout.report_samples(None, [NAME])
    generating.generated = sample([1])
    asyncio.run(generating.generate_and_rm(None, None, None, evaluation=True))
    assert not generating.stream.mock_calls
