"""verl's trainer samples a batch from its own replay buffer; its loop, workers and queue are stand-ins.

Rank 0 is the driver and the rollout, too. The engine is verl's own.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from verl.trainer.ppo.v1 import replay_buffer, trainer_base

from harness.plugin_contract import MODEL, Rank, check_planned, noted_outcomes, set_environment
from harness.verl import driver, engines, training
from relibra.planning.plan import Level
from relibra.plugins.rollout_job import RolloutJob
from relibra.plugins.rollout_stream import RolloutStream
from relibra.plugins.verl import driver as of_plugin
from relibra.wire.client import PlannerClient

PLANNED_WITHIN_S = 50.0
"""Less than a rank waits for another."""
Sample = tuple[torch.Tensor, torch.Tensor]
"""Tokens and routed experts, which are missing for the last token."""


def a_batch_is_planned_when_it_is_sampled_and_again_when_its_micro_batches_are_known(at: Rank) -> None:
    """The driver submits what verl's replay buffer returned for training, and nothing of a validation."""
    set_environment(at.planner, "verl-sampled")
    engine = training.build(at, balanced=True)
    batch = engines.batch(at.number, 0)
    samples: list[list[Sample]] = [[]] * dist.get_world_size()
    routes = [rows[:-1] for rows in batch["routed_experts"].unbind()]
    dist.all_gather_object(samples, [*zip(batch["input_ids"].unbind(), routes, strict=True)])
    if at.number == 0:
        planned = engine.passes.planned
        job = RolloutJob(
            planner=at.planner, job=planned.settings.job, attempt=planned.attempt, layers=engine.passes.layers
        )
        _generate_and_sample(job, [sample for of_rank in samples for sample in of_rank])
        with PlannerClient(at.planner, attempt=job.attempt) as planner:
            plan = planner.fetch_plan(job.job, 0, MODEL, wait_s=PLANNED_WITHIN_S)
            assert plan is not None
            assert (plan.step, plan.level) == (0, Level.STEP)
    dist.barrier()
    with noted_outcomes() as outcomes:
        engines.update(engine, batch)
    check_planned(outcomes, 1)
    if at.number == 0:
        with PlannerClient(at.planner, attempt=job.attempt) as planner:
            replaced = planner.fetch_plan(job.job, 0, MODEL)
            assert replaced is not None
            assert (replaced.step, replaced.level) == (0, Level.MICRO_BATCHES)
    engine.passes.close()


def _generate_and_sample(job: RolloutJob, samples: list[Sample]) -> None:
    """Report samples as agent loops do, while verl's trainer samples them."""
    config = driver.configuration(
        "actor_rollout_ref.rollout.enable_rollout_routing_replay=True",
        "trainer.val_before_train=False",
        "trainer.logger=[]",
    )
    is_submitted = Event()

    class OfDriver(RolloutStream):
        def submit(self, all_tokens: Callable[[], Sequence[Any]]) -> bool:
            has_planner = super().submit(all_tokens)
            is_submitted.set()
            return has_planner

    rollout, of_driver = RolloutStream(lambda: job), OfDriver(lambda: job)
    with _queue_of([tokens for tokens, _ in samples]), mock.patch.object(of_plugin, "stream", return_value=of_driver):
        trainer = driver.trainer(config, None)
        trainer.trainer_mode, trainer.global_steps = "sync", 0
        trainer._dump_futures, trainer._dump_executor = [], mock.Mock()
        trainer.steps_per_epoch, trainer.total_training_steps = 1, 0
        trainer.replay_buffer = trainer._build_replay_buffer()
        trainer.fit(None)
        trainer.replay_buffer.sample(global_steps=1, partition_id="val", batch_size=1)
        batch, _ = trainer.replay_buffer.sample(global_steps=1, partition_id="train", batch_size=len(samples))
        assert len(batch) == len(samples)
        for tokens, routed in samples:  # only now: what other processes report may be on its way
            rollout.report(tokens, routed)
        rollout.flush()
        assert is_submitted.wait(PLANNED_WITHIN_S)


@contextmanager
def _queue_of(all_tokens: list[torch.Tensor]) -> Iterator[None]:
    """Stand in for the TransferQueue after every prompt got one response, and so did one of the validation."""
    prompts = {
        f"prompt{index}": {"is_prompt": True, "status": "finished", "global_steps": 1}
        for index in range(len(all_tokens))
    }
    responses = {f"{name}_0_0": {"status": "success", "seq_len": 1} for name in prompts}

    def kv_list(*_: Any) -> dict[str, Any]:
        of_validation = {name: tag for name, tag in (prompts | responses).items() if name.startswith("prompt0")}
        return {"train": prompts | responses, "val": of_validation}

    def kv_batch_get(keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        assert (partition_id, select_fields) == ("train", ["input_ids"])
        rows = [all_tokens[int(key.removeprefix("prompt").partition("_")[0])] for key in keys]
        return {"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}

    queue = SimpleNamespace(kv_list=kv_list, kv_clear=lambda **_: None, kv_batch_get=kv_batch_get)
    with mock.patch.object(trainer_base, "tq", queue), mock.patch.object(replay_buffer, "tq", queue):
        yield
