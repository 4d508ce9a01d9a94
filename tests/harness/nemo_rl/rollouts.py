"""NeMo-RL's own asynchronous rollout in a driver, with an engine and an environment stood in for."""

import sys
from collections.abc import AsyncIterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.experience import rollouts

from relibra.plugins.nemo_rl import rollout

_NUM_SAMPLES = 3
_TASK = "task"


class Engine:
    """Answers each prompt with the rest of a sample of a batch, and the routes of all its tokens."""

    def __init__(self, data: Any) -> None:
        self.cfg = {"backend": "vllm", "vllm_cfg": {"async_engine": True}}
        self._data = data

    async def generate_async(self, asked: Any, greedy: bool) -> AsyncIterator[tuple[int, Any]]:
        prompt = asked["input_ids"][0]
        (index,) = (i for i in range(_NUM_SAMPLES) if torch.equal(self._data["input_ids"][i, : len(prompt)], prompt))
        length = self._data["input_lengths"][index : index + 1]
        answer = {name: self._data[name][index : index + 1, : int(length)] for name in ("input_ids", "routed_experts")}
        yield (
            0,
            BatchedDataDict(
                output_ids=answer["input_ids"],
                routed_experts=answer["routed_experts"],
                generation_lengths=length - len(prompt),
                unpadded_sequence_lengths=length,
                logprobs=torch.zeros(1, int(length)),
            ),
        )


def run(data: Any) -> Any:
    """Return the batch of NeMo-RL's asynchronous rollout of the first samples of some data."""
    texts = SimpleNamespace(input_ids=torch.zeros(1, 2, dtype=torch.int64))
    tokenizer = mock.Mock(return_value=texts, pad_token_id=0)
    tokenizer.batch_decode.return_value = ["answer"]
    feedback = SimpleNamespace(
        rewards=torch.ones(1),
        terminateds=torch.ones(1),
        observations=[{"role": "environment", "content": "good"}],
        next_stop_strings=[None],
        metadata=[None],
    )
    prompts = [[{"role": "user", "token_ids": ids_S[:3]}] for ids_S in data["input_ids"][:_NUM_SAMPLES]]
    asked = BatchedDataDict(message_log=prompts, extra_env_info=[None] * _NUM_SAMPLES, task_name=[_TASK] * _NUM_SAMPLES)
    with mock.patch.object(rollouts, "calculate_rewards", return_value=feedback):
        batch, _ = rollouts.run_async_multi_turn_rollout(Engine(data), asked, tokenizer, {}, max_seq_len=99)
    return batch


def streamed(data: Any) -> tuple[list[tuple[Any, ...]], list[list[dict[str, Any]]]]:
    """Return what a driver reports of a rollout and of a validation, and the messages of the rollout."""
    algorithm = ModuleType("nemo_rl.algorithms.grpo")
    algorithm.validate = lambda: run(data)  # type: ignore[attr-defined]
    stream = mock.Mock()
    with (
        mock.patch.dict(sys.modules, {algorithm.__name__: algorithm}),
        mock.patch.object(rollout, "stream", return_value=stream),
    ):
        rollout.install_in_rollout()
        algorithm.validate()
        batch = run(data)
    return [call.args for call in stream.report.call_args_list], batch["message_log"]
