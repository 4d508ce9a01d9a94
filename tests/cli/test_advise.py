import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from harness.command_line import relibra
from relibra.cli import output
from relibra.errors import InvalidInput
from relibra.routing import RoutingTrace, write_trace

_run = partial(relibra, "advise")
_SMALL = ("--gpus-per-node", 4, "--micro-batches", 2, "--tokens-per-gpu", 8192)
_CONFIG = {
    "model_type": "tiny",
    "num_hidden_layers": 8,
    "num_experts": 16,
    "num_experts_per_tok": 1,
    "hidden_size": 2880,
    "moe_intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 1000,
}
"""The configuration of the model that the traces of `_trace` are from."""


def _trace(path: Path, num_sequences: int, variance: float) -> Path:
    """Write a trace of sequences of 60 tokens, each a domain with its own popular experts unless the variance is 0."""
    rng = np.random.default_rng(0)
    shape = (num_sequences, 8, 16)
    weight_SLE = rng.gamma(1 / variance, variance, shape) if variance else np.ones(shape)
    share_SLE = weight_SLE / weight_SLE.sum(axis=-1, keepdims=True)
    routed = [np.stack([rng.choice(16, (60, 1), p=share_E) for share_E in share_LE], axis=1) for share_LE in share_SLE]
    write_trace(
        path,
        RoutingTrace(
            routed_experts=np.concatenate(routed).astype(np.uint8),
            offsets=np.arange(0, 60 * num_sequences + 1, 60),
            num_experts=16,
            domain=np.array([f"domain {index}" for index in range(num_sequences)]) if variance else None,
        ),
    )
    return path


@pytest.fixture
def model(tmp_path: Path) -> tuple[str, Path]:
    """The option that names the model."""
    (tmp_path / "config.json").write_text(json.dumps(_CONFIG))
    return "--model", tmp_path / "config.json"


def test_routing_that_differs_by_sequence_says_turn_it_on(tmp_path, model):
    trace = _trace(tmp_path / "trace.npz", 80, variance=2.0)
    # Two nodes: on one, where no expert can move to another node, UltraEP does as well.
    job = (*_SMALL, "--nodes", 2, "--micro-batches", 4, "--tokens-per-gpu", 32768, "--sequence-length", 2048)
    known = ("--knowledge", "micro-batches", "--rollout-share", 0.75, "--json")
    said = json.loads(_run(trace, *model, *job, *known, status=0))
    assert said["answer"] == "turn it on"
    assert said["gain"]["high"] > said["gain"]["mid"] > said["gain"]["low"] >= 0.02
    gain = said["gain"]["mid"]
    # A quarter of the step is training, and what is a quarter faster is a fifth shorter.
    assert said["gpu_hours_saved"]["mid"] == pytest.approx(0.25 * (1 - 1 / (1 + gain)))
    assert gain > max(each["mid"] for each in said["gain_of_others"].values())
    assert said["gain_by_slots"][str(said["redundant_slots"])] == said["gain"]
    assert set(said["gain_by_slots"]) == {"0", "1", "2", "4"}
    for each in (*said["gain_by_slots"].values(), *said["gain_of_others"].values()):
        assert each["low"] <= each["mid"] <= each["high"]
    assert said["slot_size_bytes"] == said["redundant_slots"] * 3 * 2 * 3 * 2880 * 2880


@pytest.mark.long
def test_without_replay_the_advice_is_for_plans_from_history_and_says_what_replay_would_give(tmp_path, model):
    trace = _trace(tmp_path / "trace.npz", 80, variance=2.0)
    said = json.loads(_run(trace, *model, *_SMALL, "--nodes", 2, "--json", status=1))
    assert said["gain_of_others"]["relibra, routing replayed"]["mid"] > said["gain"]["mid"] > 0
    assert "replicate-only" not in said["gain_of_others"]


@pytest.mark.long
def test_even_routing_says_that_it_will_not_pay(tmp_path, model, monkeypatch):
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    printed = _run(_trace(tmp_path / "trace.npz", 80, variance=0), *model, *_SMALL, status=1)
    assert "It will not pay." in printed
    assert max(map(len, printed.splitlines())) <= 80
    for label in (
        "relibra, 1 slot ",
        "eplb-oracle, 1 slot ",
        "relibra, routing",
        "EPLB as it is",
        "Best setting: redundant_slots=",
        "simulated",
    ):
        assert label in printed
    assert "--rollout-share says what the whole step saves" in " ".join(printed.split())


@pytest.mark.long
def test_few_sequences_are_not_enough(tmp_path, model):
    trace = _trace(tmp_path / "trace.npz", 20, variance=2.0)
    printed = _run(trace, *model, *_SMALL, "--memory-gib", 100, status=1)
    assert "Not enough data." in printed
    assert "at least 32 sequences; there are 20" in printed
    assert "With 100 GiB for activations of experts" in printed
    ep_2 = next(words for words in map(str.split, printed.splitlines()) if words[:1] == ["2"])
    assert 0 < int(ep_2[-2].replace(",", "")) <= int(ep_2[-1].replace(",", ""))


@pytest.mark.parametrize("memory_gib", [0, "inf", "nan"])
def test_a_memory_that_holds_nothing_or_everything_is_refused(tmp_path, model, memory_gib):
    trace = _trace(tmp_path / "trace.npz", 20, variance=2.0)
    with pytest.raises(InvalidInput, match="--memory-gib: expected more than 0"):
        _run(trace, *model, *_SMALL, "--memory-gib", memory_gib, status=2)


@pytest.mark.long
def test_S9_a_trace_of_another_model_is_never_a_reason_to_turn_it_on(tmp_path):
    asked = ("--model", "gpt-oss-20b", *_SMALL)
    printed = _run(_trace(tmp_path / "trace.npz", 80, variance=2.0), *asked, status=1)
    assert "Not enough data." in printed
    assert "it has 8 MoE layers x 16 experts, top 1, and gpt-oss-20b has 24 x 32, top 4. Record this model" in printed


@pytest.mark.parametrize("share", [-0.1, 1, 60])
def test_a_share_of_rollouts_that_leaves_no_training_is_refused(tmp_path, model, share):
    trace = _trace(tmp_path / "trace.npz", 20, variance=2.0)
    with pytest.raises(InvalidInput, match="--rollout-share: expected at least 0 and below 1"):
        _run(trace, *model, *_SMALL, "--rollout-share", share, status=2)


def test_ranks_that_do_not_divide_the_experts_are_refused(tmp_path, model):
    trace = _trace(tmp_path / "trace.npz", 20, variance=2.0)
    with pytest.raises(InvalidInput, match="expected a multiple of the 12 EP ranks"):
        _run(trace, *model, *_SMALL, "--nodes", 3, status=2)
