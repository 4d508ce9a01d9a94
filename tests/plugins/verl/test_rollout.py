import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from relibra.plugins.verl import rollout


class AgentLoopWorker:
    """Imports `external_lib` as verl's does, while it is built."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        rollout.install_in_rollout()

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> str:
        self.taken.append((output, validate, kwargs))
        return "taken"


def sample(response: list[int]) -> Any:
    return SimpleNamespace(prompt_ids=[1, 2], response_ids=response, routed_experts=[[0]] * 9)


def test_the_worker_that_is_being_built_reports_its_samples_and_none_of_a_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[Any] = []
    reporting = SimpleNamespace(report=lambda tokens, routed: reported.append((tokens, len(routed))))
    monkeypatch.setattr(rollout, "stream", lambda: reporting)
    monkeypatch.setitem(
        sys.modules, rollout._MODULE, SimpleNamespace(__name__="agent_loop", AgentLoopWorker=AgentLoopWorker)
    )
    worker = type("WorkerOfARecipe", (AgentLoopWorker,), {})()
    turns = [sample([3]), sample([4, 5])]
    for output, validate in ((sample([7]), False), (turns, False), (sample([8]), True)):
        assert asyncio.run(worker._agent_loop_postprocess(output, validate, uid="a")) == "taken"
    assert reported == [([1, 2, 7], 3), ([1, 2, 3], 3), ([1, 2, 4, 5], 4)]
    assert [(validate, named) for _, validate, named in worker.taken] == [(each, {"uid": "a"}) for each in (0, 0, 1)]


def test_a_process_that_builds_no_worker_of_agent_loops_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout.install_in_rollout()
    module = SimpleNamespace(__name__="agent_loop", AgentLoopWorker=AgentLoopWorker)
    monkeypatch.setitem(sys.modules, rollout._MODULE, module)
    own = AgentLoopWorker._agent_loop_postprocess
    rollout.install_in_rollout()
    assert AgentLoopWorker._agent_loop_postprocess is own
