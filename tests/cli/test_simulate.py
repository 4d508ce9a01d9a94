import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from harness.command_line import relibra
from relibra.cli import output
from relibra.errors import InvalidInput, InvalidTrace
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.training import Training
from relibra.planning import Cluster
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import hardware_of
from relibra.routing import RoutingTrace, write_trace

_run = partial(relibra, "simulate")
_SMALL = ("--model", "gpt-oss-20b", "--gpus-per-node", 4, "--micro-batches", 2, "--tokens-per-gpu", 1024)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of a model that is not a preset."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("trace") / "trace.npz"
    routed = np.minimum(rng.geometric(0.2, (800, 2, 2)) - 1, 15).astype(np.uint8)
    write_trace(path, RoutingTrace(routed_experts=routed, offsets=np.arange(0, 801, 20), num_experts=16))
    return path


def test_json_has_every_policy_and_the_parts_of_its_step_time(trace):
    said = json.loads(_run(trace, *_SMALL, "--policies", "plain, relibra", "--json"))
    assert said["is_of_this_model"] is False
    assert [each["policy"] for each in said["policies"]] == ["plain", "relibra"]
    plain, ours = said["policies"]
    assert plain["imbalance"] > ours["imbalance"] >= 1
    assert plain["total_s"] == pytest.approx(sum(plain["step"].values()))
    for ratio in ("over_plain", "of_balanced"):
        assert ours[ratio]["low"] < ours[ratio]["mid"] < ours[ratio]["high"]
    assert plain["replicas_per_cell"] == plain["sent_bytes"] == 0
    weight_bytes = 2 * 3 * 2880 * 2880
    replicas = round(ours["replicas_per_cell"] * 2 * 24)
    assert ours["sent_bytes"] == (2 + 1 + 2) * replicas * weight_bytes + 7 * ours["num_moved_experts"] * weight_bytes
    assert said["slots_size_bytes"] == 2 * 3 * weight_bytes


def test_equal_seeds_give_equal_results_and_others_do_not(trace):
    one, same, other = (
        json.loads(_run(trace, *_SMALL, "--policies", "plain", "--seed", seed, "--json"))["policies"][0]["imbalance"]
        for seed in (1, 1, 2)
    )
    assert one == same != other


@pytest.mark.long
def test_the_table_fits_80_columns_and_names_every_policy(trace, monkeypatch):
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    printed = _run(trace, *_SMALL, "--nodes", 2)
    assert max(map(len, printed.splitlines())) <= 80
    assert "…" not in printed
    for policy in ("plain", "eplb-history", "relibra-packed"):
        assert re.search(rf"^ *{policy} ", printed, re.MULTILINE)
    assert "another model" in printed


def test_longer_sequences_spend_more_on_attention(trace):
    short, long = (
        json.loads(_run(trace, *_SMALL, "--policies", "plain", "--sequence-length", length, "--json"))["policies"][0]
        for length in (100, 100_000)
    )
    assert long["step"]["attention_s"] > 2 * short["step"]["attention_s"]
    assert long["step"]["experts_s"] == short["step"]["experts_s"]


def test_the_dispatcher_of_the_job_decides_what_dispatch_takes(trace):
    every, once = (
        json.loads(_run(trace, *_SMALL, "--nodes", 2, "--policies", "plain", "--dispatcher", name, "--json"))
        for name in ("alltoall", "deepep")
    )
    dispatch_s = [each["policies"][0]["step"]["dispatch_s"] for each in (every, once)]
    assert dispatch_s[0] > 1.5 * dispatch_s[1]
    assert "Assumed: dispatch by alltoall in bf16, 2 micro-batches" in " ".join(
        _run(trace, *_SMALL, "--policies", "plain").split()
    )


def test_measured_times_replace_computed_ones(trace, tmp_path):
    cluster = Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=0)
    training = Training.of(MODELS["gpt-oss-20b"], hardware_of("h100"), cluster, Dispatcher.ALLTOALL)
    computed = training.planning_cost.to_dict()
    slower = computed | {"expert_us": [2 * each for each in computed["expert_us"]]}
    path = tmp_path / "cost.json"
    experts_s = []
    for cost in (computed, slower):
        path.write_text(json.dumps(cost))
        said = json.loads(_run(trace, *_SMALL, "--policies", "plain", "--cost", path, "--json"))
        experts_s.append(said["policies"][0]["step"]["experts_s"])
    assert experts_s[1] == pytest.approx(2 * experts_s[0])


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--policies", "plain,magic"), "--policies: expected some of plain, .*, got magic"),
        (("--model", "gpt-5"), "model: expected one of .*gpt-oss-20b.*, got gpt-5"),
        (("--hardware", "tpu"), "hardware: expected one of h100, .*, got tpu"),
        (("--nodes", 5), r"model.num_experts: expected a multiple of the 20 EP ranks \(5 nodes x 4\), got 32"),
    ],
)
def test_invalid_options_are_refused_with_the_valid_values(trace, args, expected):
    with pytest.raises(InvalidInput, match=expected):
        _run(trace, *_SMALL, *args)


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    (tmp_path / "trace.npz").write_text("nothing")
    with pytest.raises(InvalidTrace):
        _run(tmp_path / "trace.npz", *_SMALL)
