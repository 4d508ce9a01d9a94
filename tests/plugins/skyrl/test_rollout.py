"""A generator that works as SkyRL's does: trajectories end one by one, and then the batch is handed over."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from relibra.plugins.skyrl import rollout


class Generator:
    """Generates two trajectories."""

    batched = False

    async def agent_loop(self, prompt: list[int], *, training_phase: str = "train") -> SimpleNamespace:
        return SimpleNamespace(prompt_ids=prompt, response_ids=[7], rollout_expert_indices="routes")

    async def generate(self, input_batch: dict[str, Any]) -> dict[str, Any]:
        prompts = [[1], [2]]
        phase = input_batch["batch_metadata"].training_phase
        outputs = await asyncio.gather(*(self.agent_loop(prompt, training_phase=phase) for prompt in prompts))
        return {
            "prompt_token_ids": prompts,
            "response_ids": [output.response_ids for output in outputs],
            "rollout_expert_indices": [output.rollout_expert_indices for output in outputs],
        }


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    stream = mock.Mock()
    monkeypatch.setattr(rollout, "stream", lambda: stream)
    return stream


def generate(generator: Any, phase: str) -> Any:
    return asyncio.run(generator.generate({"batch_metadata": SimpleNamespace(training_phase=phase)}))


def test_trajectories_are_reported_where_they_end_and_submitted_when_all_have_ended(stream: mock.Mock) -> None:
    output = generate(rollout.report_trajectories(Generator()), "train")
    assert output["response_ids"] == [[7], [7]]
    *reports, (name, (all_tokens,), _) = stream.mock_calls
    assert reports == [mock.call.report([first, 7], "routes") for first in (1, 2)]
    assert (name, all_tokens()) == ("submit", [[1, 7], [2, 7]])


def test_where_a_call_generates_a_part_of_a_step_nothing_is_submitted(stream: mock.Mock) -> None:
    generate(rollout.report_trajectories(Generator(), generates_steps=False), "train")
    assert stream.mock_calls == [mock.call.report([first, 7], "routes") for first in (1, 2)]


def test_an_evaluation_reports_nothing(stream: mock.Mock) -> None:
    generate(rollout.report_trajectories(Generator()), "eval")
    assert not stream.mock_calls


def test_a_generator_that_generates_in_batches_is_left_as_it_is(stream: mock.Mock) -> None:
    generator = Generator()
    generator.batched = True
    generate(rollout.report_trajectories(generator), "train")
    assert not stream.mock_calls
