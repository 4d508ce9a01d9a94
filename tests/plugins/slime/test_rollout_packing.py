"""Rollout managers of slime and miles, in which relibra chooses micro-batches and ranks: their own functions split."""

import ast
import importlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness import frameworks
from harness.services import MODEL, Service, eventually
from relibra.planning import Cluster, CostModel, PlanParams
from relibra.plugins.slime import batch as slime
from relibra.plugins.slime.framework import MILES, SLIME
from relibra.plugins.slime.rollout_packing import PackingJob, RolloutPacking, install, tell
from relibra.plugins.slime.rollout_schedule import RolloutSchedule
from relibra.rollout import RolloutReporter
from relibra.routing import ModelLayers
from relibra.steps import report_rank, submit_step
from relibra.steps.parallel_layout import ParallelLayout
from relibra.wire.client import PlannerClient
from relibra.wire.credentials import Credentials

RANKS = ParallelLayout(data=4, expert=4)
CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
PARAMS = PlanParams(cost=CostModel(token_size_bytes=1e7))
"""Dispatch is what costs time."""
LAYERS = ModelLayers.uniform(num_layers=MODEL.num_layers, num_experts=MODEL.num_experts, top_k=MODEL.top_k)
AWAY = "127.0.0.1:1"
BUDGET = 64
PARALLEL = {"dp_size": 4, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
ARGUMENTS = SimpleNamespace(
    use_dynamic_batch_size=True,
    max_tokens_per_gpu=BUDGET,
    balance_data=False,
    balance_by_flops=False,
    global_batch_size=32,
    micro_batch_size=2,
)


def functions(path: Path, names: dict[str, Any]) -> dict[str, Any]:
    """Return functions of a file with globals of their own, as Ray copies those of its actors."""
    tree = ast.parse(path.read_text())
    nodes: list[ast.stmt] = [
        each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and (each.name in names["_wanted"])
    ]
    exec(compile(ast.Module(nodes, type_ignores=[]), str(path), "exec"), names)
    return names


@pytest.fixture
def dp_schedule(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The module of a framework that forms schedules."""
    name = request.param
    folder = frameworks.checkout(name)
    if folder is None:
        pytest.skip(frameworks.reason(name))
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module(f"{name}.utils.dp_schedule")
    for each in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[each]


def manager_of(dp_schedule: ModuleType, monkeypatch: pytest.MonkeyPatch, args: Any = ARGUMENTS) -> Any:
    """Return a rollout manager that has the framework's own functions for splitting, and `split`, which calls them."""
    name = dp_schedule.__name__.partition(".")[0]
    folder = frameworks.checkout(name)
    assert folder is not None
    names: dict[str, Any] = {"build_dp_schedule": dp_schedule.build_dp_schedule, "Any": Any}
    names["ray"] = SimpleNamespace(put=lambda value: value)
    names |= {"Box": lambda value: value, "tensorize_rollout_data_for_training": lambda _: None}
    names["logger"] = logging.getLogger(name)
    if name == "slime":
        names["_wanted"] = ["_split_train_data_by_dp"]
        functions(folder / "slime/ray/rollout.py", names)
        manager = type("RolloutManager", (), {"_split_train_data_by_dp": names["_split_train_data_by_dp"]})()
        split = lambda data: manager._split_train_data_by_dp(data)  # noqa: E731
    else:
        module = ModuleType("miles.ray.rollout.train_data_conversion")
        vars(module).update(names, _wanted=["split_train_data_by_dp_scheduled_raw", "_package_shards"])
        functions(folder / "miles/ray/rollout/train_data_conversion.py", vars(module))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr("relibra.plugins.slime.rollout_packing.import_module", lambda _: module)
        manager = SimpleNamespace()
        split = lambda data: module.split_train_data_by_dp_scheduled_raw(  # noqa: E731
            args, data, train_parallel_config=PARALLEL
        )
    vars(manager).update(args=args, train_parallel_config=PARALLEL, rollout_id=0, split=split)
    return manager


def rollout(num_samples: int = 64, seed: int = 0) -> dict[str, Any]:
    """Return samples of two domains in turn: each uses the experts of one node, and a few others."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(8, 33, num_samples)
    routing = []
    for index, length in enumerate(lengths):
        favour_E = np.where(np.arange(MODEL.num_experts) // (MODEL.num_experts // 2) == index % 2, 4.0, 0.0)
        score_TLE = rng.gumbel(size=(length - 1, MODEL.num_layers, MODEL.num_experts)) + favour_E
        routing.append(np.argsort(-score_TLE, axis=-1)[..., : MODEL.top_k].astype(np.int32))
    return {
        "tokens": [[0] * int(length) for length in lengths],
        "rollout_ids": list(range(num_samples)),
        "rollout_routed_experts": routing,
    }


def schedule_of(shards: list[dict[str, Any]]) -> RolloutSchedule:
    return RolloutSchedule(
        partitions=[shard["partition"] for shard in shards],
        micro_batch_indices=[shard["micro_batch_indices"] for shard in shards],
        num_microbatches=shards[0]["num_microbatches"],
    )


def crossing(planner: str, name: str, schedule: RolloutSchedule, data: dict[str, Any]) -> int:
    """Return the copies that leave their node in the first training step, under the plan that the step gets."""
    attempt = f"launch of {name}"
    with (
        PlannerClient(planner, attempt=attempt) as client,
        RolloutReporter(planner, name, num_experts=MODEL.num_experts, attempt=attempt) as reporter,
    ):
        client.register_job(name, MODEL, CLUSTER, PARAMS)
        reported = []
        for rank, (partition, indices) in enumerate(
            zip(schedule.partitions, schedule.micro_batch_indices, strict=True)
        ):
            of_rank = {key: [data[key][sample] for sample in partition] for key in ("tokens", "rollout_routed_experts")}
            of_rank |= {"micro_batch_indices": indices, "num_microbatches": schedule.num_microbatches}
            batch = slime.rank_batch(of_rank, LAYERS)
            reported.append(report_rank(reporter, 0, batch, f"rank-{rank}", ep_group=0, ep_rank=rank))
        submit_step(client, name, 0, reported)
        home_LE = client.fetch_plan(name, 0, MODEL, wait_s=60).home_rank_LE
    node_LE = home_LE // CLUSTER.gpus_per_node
    layer_L1 = np.arange(MODEL.num_layers)[:, None]
    return sum(
        int((node_LE[layer_L1, data["rollout_routed_experts"][sample]] != rank // CLUSTER.gpus_per_node).sum())
        for rank, of_rank in enumerate(schedule.steps()[0])
        for samples in of_rank
        for sample in samples
    )


def job_of(planner: str, name: str) -> PackingJob:
    return PackingJob(
        planner=planner, job=name, attempt=f"launch of {name}", layers=LAYERS, ranks=RANKS, credentials=Credentials()
    )


@pytest.mark.integration
@pytest.mark.parametrize("dp_schedule", ["slime", "miles"], indirect=True)
@pytest.mark.parametrize("is_dynamic", [True, False])
def test_samples_start_where_their_experts_live_under_the_rules_of_the_framework(
    dp_schedule: ModuleType,
    is_dynamic: bool,
    shared_planner: Service,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    args = SimpleNamespace(**vars(ARGUMENTS) | {"use_dynamic_batch_size": is_dynamic})
    manager = manager_of(dp_schedule, monkeypatch, args)
    name = f"{dp_schedule.__name__.partition('.')[0]}-{is_dynamic}"
    data = rollout()
    own = schedule_of(manager.split(dict(data)))
    framework = MILES if name.startswith("miles") else SLIME
    job = job_of(shared_planner.address, name)
    with PlannerClient(job.planner, attempt=job.attempt) as planner:
        planner.register_job(name, MODEL, CLUSTER, PARAMS)
        install(manager, framework.splitting, job)

        def packed() -> RolloutSchedule | None:  # a planner that has just started may be too late at first
            manager.rollout_id += 1
            found = schedule_of(manager.split(dict(data)))
            return found if found != own else None

        found = eventually(packed)
    assert f"relibra packs the samples of job {name}" in caplog.text
    address = shared_planner.address
    assert crossing(address, name, found, data) < crossing(address, f"{name}-own", own, data) / 2
    assert found.num_microbatches == own.num_microbatches
    lengths = [len(tokens) for tokens in data["tokens"]]
    for step, own_step in zip(found.steps(), own.steps(), strict=True):
        samples = [sample for of_rank in step for each in of_rank for sample in each]
        own_samples = [sample for of_rank in own_step for each in of_rank for sample in each]
        assert sorted(samples) == sorted(own_samples), "a sample left its training step"
        for of_rank in step:
            assert len(of_rank) == len(step[0])
            for each in of_rank:
                assert len(each) == 2 if not is_dynamic else each
                assert not is_dynamic or sum(lengths[sample] for sample in each) <= BUDGET
    for partition, indices in zip(found.partitions, found.micro_batch_indices, strict=True):
        assert [place for places in indices for place in places] == list(range(len(partition)))


@pytest.mark.parametrize("dp_schedule", ["slime", "miles"], indirect=True)
def test_L1_a_rollout_keeps_the_own_schedule_while_the_planner_is_away_and_the_log_says_so_once(
    dp_schedule: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("relibra.plugins.slime.rollout_packing.TIMEOUT_S", 0.2)
    manager = manager_of(dp_schedule, monkeypatch)
    data = rollout()
    own = schedule_of(manager.split(dict(data)))
    framework = MILES if dp_schedule.__name__.startswith("miles") else SLIME
    install(manager, framework.splitting, job_of(AWAY, "away"))
    for _ in range(2):
        assert schedule_of(manager.split(dict(data))) == own
    tell(manager, 0, 2)
    assert schedule_of(manager.split({key: data[key] for key in ("tokens", "rollout_ids")})) == own
    assert caplog.text.count("keeps the framework's own schedule: ") == 2  # the second is that of missing routing
    assert "rollout_routed_experts: expected the routing of every sample" in caplog.text


def test_a_rollout_is_reported_under_a_step_that_no_pass_has_begun() -> None:
    packing = RolloutPacking(job_of(AWAY, "away"))

    def first_step(rollout_id: int) -> int:
        packing.rollout_id = rollout_id
        return packing._first_step(num_training_steps=2)

    assert first_step(7) == 0  # the first one of training processes that have started
    assert first_step(8) == 4  # generated while rollout 7 trains: two passes of two training steps are before it
    packing.tell(7, 2)  # rollout 7 had updates only
    assert first_step(8) == 2
    assert first_step(9) == 6
    packing.follow(replace(job_of(AWAY, "away"), num_other_steps=1))
    assert first_step(9) == 0
    assert first_step(10) == 5  # the reference runs over rollout 10 before the actor does


def test_what_depends_on_the_micro_batch_is_refused_by_name() -> None:
    SLIME.check_packing(SimpleNamespace(moe_aux_loss_coeff=[0.0], custom_tis_function_path=None))
    with pytest.raises(Exception, match=r"\(pack\) with --moe-aux-loss-coeff, --custom-tis-function-path: the loss"):
        SLIME.check_packing(SimpleNamespace(moe_aux_loss_coeff=0.001, custom_tis_function_path="a.b"))
