"""A trainer that samples and deals batches as verl's does, with what relibra submits and deals again."""

import sys
from collections.abc import Callable
from threading import Event, Timer
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from relibra.plugins.verl import dealer, driver

TOKENS = {"a": [1, 2, 3], "b": [4], "c": [5, 6]}
DEALT: list[tuple[Any, str]] = []
"""The batches that relibra was asked to deal, with the prefix of their metrics."""


class Config(dict[str, Any]):
    """The configuration of a job, with the section `relibra`."""

    def __init__(self, *, records: bool = True, **relibra: Any) -> None:
        super().__init__(relibra=relibra)
        self.actor_rollout_ref = SimpleNamespace(rollout={"enable_rollout_routing_replay": records})


class Trainer:
    """A trainer that samples one batch for a validation and one for training, and deals batches in its own way."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.replay_buffer = SimpleNamespace(sample=self._sample)

    def fit(self, agent_loops: str) -> list[Any]:
        return [self.replay_buffer.sample(partition_id=name) for name in ("val", "train")]

    def _sample(self, partition_id: str) -> tuple[SimpleNamespace, dict[str, int]]:
        return SimpleNamespace(partition_id=partition_id, keys=[*TOKENS]), {"dropped": 1}

    def _balance_batch(
        self, batch: Any, metrics: Any, logging_prefix: str = "global_seqlen", keep: bool = False
    ) -> Any:
        metrics["keep"] = keep
        return f"another {batch}"


def kv_batch_get(keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, torch.Tensor]:
    assert (partition_id, select_fields) == ("train", ["input_ids"])
    rows = [torch.tensor(TOKENS[key]) for key in keys]
    return {"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}


@pytest.fixture
def of_trainer(monkeypatch: pytest.MonkeyPatch) -> type[Trainer]:
    """Return the trainer of a process that has loaded it, with the plug-in."""
    monkeypatch.setattr(
        dealer,
        "Dealer",
        lambda trainer: SimpleNamespace(deal=lambda batch, _queue, _metrics, name: DEALT.append((batch, name))),
    )
    DEALT.clear()
    own: Any = type("PPOTrainer", (Trainer,), {"fit": Trainer.fit, "_balance_batch": Trainer._balance_batch})
    loaded: Any = ModuleType(driver.MODULE)
    loaded.PPOTrainer, loaded.tq = own, SimpleNamespace(kv_batch_get=kv_batch_get)
    monkeypatch.setitem(sys.modules, driver.MODULE, loaded)
    driver.install_in_driver()
    return own  # type: ignore[no-any-return]


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """Return the stream of the process, which is called at once."""
    stream = mock.Mock()
    monkeypatch.setattr(driver, "stream", lambda: stream)
    monkeypatch.setattr(driver, "ThreadPoolExecutor", lambda *_: SimpleNamespace(submit=lambda call, *of: call(*of)))
    return stream


def test_a_batch_that_was_sampled_for_training_is_submitted_with_its_tokens(
    of_trainer: type[Trainer], stream: mock.Mock
) -> None:
    assert [(batch.partition_id, metrics) for batch, metrics in of_trainer(Config()).fit("agent loops")] == [
        ("val", {"dropped": 1}),
        ("train", {"dropped": 1}),
    ]
    ((name, (all_tokens,), _),) = stream.mock_calls
    assert name == "submit"
    assert [tokens.tolist() for tokens in all_tokens()] == [*TOKENS.values()]
    assert all(tokens.dtype == np.int64 for tokens in all_tokens())


def test_the_first_pass_begins_once_its_step_is_submitted_and_waits_for_no_planner_that_lacks_the_step_before(
    of_trainer: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool] = []
    answer = Event()

    class Slow:
        def submit(self, tokens: Callable[[], Any]) -> bool:
            answer.wait(60)
            answer.clear()
            answers.append(not answers)
            return answers[-1]

    monkeypatch.setattr(driver, "stream", Slow)
    monkeypatch.setattr(driver, "_SUBMISSION_S", 60.0)
    trainer = of_trainer(Config())
    Timer(0.2, answer.set).start()
    trainer.fit("agent loops")
    trainer._balance_batch("keys", {})
    assert answers == [True]
    Timer(0.2, answer.set).start()
    trainer.replay_buffer.sample(partition_id="train")
    trainer._balance_batch("keys", {})
    assert answers == [True, False]
    trainer.replay_buffer.sample(partition_id="train")
    trainer._balance_batch("keys", {})
    assert answers == [True, False], "the planner answers nothing, and nobody waits"
    answer.set()


def test_nothing_is_submitted_where_rollouts_record_no_routing(of_trainer: type[Trainer], stream: mock.Mock) -> None:
    assert len(of_trainer(Config(records=False)).fit("agent loops")) == 2
    assert not stream.mock_calls


def test_without_pack_nothing_but_verls_own_code_deals(
    of_trainer: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RELIBRA_PACK", raising=False)
    metrics: dict[str, Any] = {}
    assert of_trainer(Config())._balance_batch("keys", metrics, keep=True) == "another keys"
    assert of_trainer(Config())._balance_batch("keys", metrics, "prefix", True) == "another keys"
    assert metrics == {"keep": True}
    assert DEALT == []


def test_with_pack_relibra_deals_the_batch_that_verl_has_dealt(
    of_trainer: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_trainer(Config(pack=True))._balance_batch("keys", metrics={}) == "another keys"
    assert of_trainer(Config(pack=True))._balance_batch("keys", {}, "prefix") == "another keys"
    monkeypatch.setenv("RELIBRA_PACK", "1")
    of_trainer(Config())._balance_batch("by environment", {})
    assert DEALT == [
        ("another keys", "global_seqlen"),
        ("another keys", "prefix"),
        ("another by environment", "global_seqlen"),
    ]


def test_a_process_without_a_trainer_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, driver.MODULE, raising=False)
    driver.install_in_driver()
    assert driver.MODULE not in sys.modules
