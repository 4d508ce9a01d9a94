"""The driver deals a batch as the planner advises, or leaves verl's own order and says why, once."""

import logging
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from relibra.errors import InvalidInput, Unavailable
from relibra.planning import Cluster, Freedom
from relibra.plugins.settings import PluginSettings
from relibra.plugins.verl import dealer as module
from relibra.plugins.verl.dealer import Dealer
from relibra.plugins.verl.trained_job import TrainedJob
from relibra.routing import ModelLayers
from relibra.steps.parallel_layout import ParallelLayout

JOB = TrainedJob(
    settings=PluginSettings(planner="127.0.0.1:1", job="job", plan_timeout_s=3.0),
    token=None,
    attempt="launch",
    layers=ModelLayers.uniform(num_layers=2, num_experts=8, top_k=2),
    ranks=ParallelLayout(data=2, expert=2),
    cluster=Cluster(num_nodes=2, gpus_per_node=1, redundant_slots=1),
    next_step=7,
    is_registered=True,
)
LENGTHS = [3, 5, 4, 2, 6, 7, 1, 8]
ADVISED = [[[0, 5], [2, 6]], [[4, 1], [3, 7]]]
KEPT = "sequences keep the data-parallel ranks that verl chose"


class Batch:
    """A batch of the newer trainer."""

    def __init__(self) -> None:
        self.tags = [{"seq_len": each} for each in LENGTHS]
        self.keys, self.partition_id, self.order = list("abcdefgh"), "train", list(range(8))

    def reorder(self, indexes: list[int]) -> None:
        self.order = [self.order[each] for each in indexes]


class Driver:
    """A driver whose planner is scripted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, job: TrainedJob | None = JOB) -> None:
        self.asked = mock.Mock(return_value=job)
        self.packed = mock.Mock(return_value=(ADVISED, "near their experts"))
        monkeypatch.setattr(module, "ask_first_worker", self.asked)
        monkeypatch.setattr(module, "pack_step", self.packed)
        megatron = SimpleNamespace(router_replay=SimpleNamespace(mode="R3"))
        actor = SimpleNamespace(megatron=megatron, ppo_mini_batch_size=2, shuffle=False)
        critic = SimpleNamespace(ppo_mini_batch_size=4, shuffle=False)
        rollout = SimpleNamespace(n=2)
        config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(actor=actor, rollout=rollout), critic=critic)
        self.trainer = SimpleNamespace(config=config, actor_rollout_wg="workers", use_critic=True)
        self.dealer = Dealer(self.trainer)
        self.metrics: dict[str, Any] = {}

    def deal(self) -> list[int]:
        batch = Batch()
        queue = SimpleNamespace(kv_batch_get=lambda **_: {"routed_experts": [np.zeros((1, 2, 2), int)] * 8})
        self.dealer.deal(batch, queue, self.metrics, "global_seqlen")
        return batch.order


def test_a_batch_is_dealt_as_the_planner_advises(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(monkeypatch)
    assert driver.deal() == driver.deal() == [0, 5, 2, 6, 4, 1, 3, 7]
    assert driver.metrics == {
        "global_seqlen/balanced_min": 15,
        "global_seqlen/balanced_max": 21,
        "relibra/packed": 1,
    }
    (_, _, _, _, first_name, *_), (_, _, job, step, name, packable, *_) = [
        each.args for each in driver.packed.mock_calls
    ]
    assert (job, step) == ("job", 7)
    assert name != first_name
    assert packable.dealt == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert (packable.freedom, packable.keeps_counts, packable.length_S) == (Freedom.RANKS, True, LENGTHS)
    assert caplog.text.count("relibra chooses the data-parallel ranks of sequences of job job") == 1


def test_L1_verls_own_order_stays_while_the_planner_is_away_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(monkeypatch)
    driver.packed.side_effect = Unavailable("the planner did not answer")
    assert [driver.deal() for _ in range(3)] == [list(range(8))] * 3
    assert driver.metrics == {"relibra/packed": 0}
    assert caplog.text.count(f"{KEPT}: the planner did not answer") == 1
    driver.packed.side_effect = None
    assert driver.deal() != list(range(8))
    assert "relibra chooses the ranks of sequences again, after 3 batches in verl's own order" in caplog.text


@pytest.mark.parametrize("error", [InvalidInput("wrong"), ZeroDivisionError("a mistake")])
def test_L1_whatever_fails_leaves_verls_own_order(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    driver = Driver(monkeypatch)
    driver.packed.side_effect = error
    assert driver.deal() == list(range(8))
    assert caplog.text.count(KEPT) == 1
    assert [each.levelno for each in caplog.records] == [
        logging.WARNING if isinstance(error, InvalidInput) else logging.ERROR
    ]


@pytest.mark.parametrize(
    ("job", "named"),
    [
        (None, "no engine of relibra"),
        (replace(JOB, is_registered=False), "the planner is away, or has lost the job"),
        (replace(JOB, cluster=Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1)), "on one machine"),
        (replace(JOB, ranks=ParallelLayout(data=2, expert=1, expert_tensor=2)), "expert-tensor"),
        (replace(JOB, ranks=ParallelLayout(data=3, expert=3)), "the batch: expected equally many of 8 sequences"),
    ],
)
def test_S9_a_job_that_cannot_be_packed_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, job: TrainedJob | None, named: str
) -> None:
    driver = Driver(monkeypatch, job)
    assert driver.deal() == driver.deal() == list(range(8))
    assert caplog.text.count(KEPT) == 1
    assert named in caplog.text
    driver.packed.assert_not_called()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda trainer: setattr(trainer.config.actor_rollout_ref.actor.megatron.router_replay, "mode", "R2"),
            "mode=R2",
        ),
        (lambda trainer: setattr(trainer.config.actor_rollout_ref.actor, "shuffle", True), "shuffle of the actor"),
        (lambda trainer: setattr(trainer, "use_prefix_grouper", True), "use_prefix_grouper"),
    ],
)
def test_S9_a_setting_of_verl_that_pack_cannot_serve_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: Any, named: str
) -> None:
    driver = Driver(monkeypatch)
    change(driver.trainer)
    assert driver.deal() == driver.deal() == list(range(8))
    assert caplog.text.count(KEPT) == 1
    assert named in caplog.text
    driver.packed.assert_not_called()


def test_shuffle_of_the_only_mini_batch_changes_no_optimizer_step(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    actor, critic = driver.trainer.config.actor_rollout_ref.actor, driver.trainer.config.critic
    actor.ppo_mini_batch_size = critic.ppo_mini_batch_size = 4
    actor.shuffle = critic.shuffle = True
    driver.packed.return_value = ([[[0, 5, 2, 6]], [[4, 1, 3, 7]]], "")
    driver.deal()
    assert driver.packed.call_args.args[5].dealt == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]


def test_L1_a_worker_that_does_not_answer_is_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    class RayError(Exception):
        pass

    def get(_reference: Any, timeout: float) -> Any:
        raise RayError("timed out")

    ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=RayError))
    monkeypatch.setitem(sys.modules, "ray", ray)
    worker = SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda _function: "a reference"))
    with pytest.raises(Unavailable, match="does not say which job it trains: timed out"):
        module.ask_first_worker(SimpleNamespace(workers=[worker]))
