"""The blocks of docs/integrations run unchanged except for the planner's address, the job's name and the model file."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from harness.doc_blocks import python_of
from harness.engine_payloads import all_layers, areal
from harness.framework_batches import (
    LAYERS,
    LENGTHS,
    nemo_batch,
    prime_micro_batches,
    sequence_rows,
    skyrl_batch,
    slime_rollout_data,
    verl_data,
)
from harness.services import Service
from relibra.planning import Cluster, Model, Schedule, StepLoad
from relibra.planning.plan import Basis
from relibra.routing import read_trace
from relibra.wire.client import PlannerClient

pytestmark = pytest.mark.integration

CONFIG = {"num_hidden_layers": 3, "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 2}
MODEL = Model(num_layers=2, num_experts=8, top_k=2)


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """Initialise a process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def run_page(page: str, names: dict[str, Any], address: str, folder: Path) -> dict[str, Any]:
    """Run the blocks of a page in one namespace, and return it."""
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    for block in python_of(f"docs/integrations/{page}.md"):
        for stands, runs in (("planner:7420", address), ("my-job", f"page-{page}"), ("config.json", str(config))):
            block = block.replace(stands, runs)
        exec(block, names)
    return names


def check_plan_of(page: str, address: str, step: int) -> None:
    with PlannerClient(address) as client:
        plan = client.fetch_plan(f"page-{page}", step, MODEL, 3, wait_s=60)
    assert plan.home_rank_LE.shape == (2, 8)
    assert len(plan.replica_index_Q4)


def test_slime(shared_planner: Service, tmp_path: Path) -> None:
    names = {"rollout_id": 5, "rollout_data_of_ranks": [slime_rollout_data(0), slime_rollout_data(1)]}
    names = run_page("slime", names, shared_planner.address, tmp_path)
    names["reporting"].wait()
    for step in (10, 11):
        check_plan_of("slime", shared_planner.address, step)


def test_S9_slime_hears_of_a_rollout_without_plans(
    shared_planner: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = {"rollout_id": 7, "rollout_data_of_ranks": [slime_rollout_data(0), slime_rollout_data(1)]}
    names = run_page("slime", names, shared_planner.address, tmp_path)
    data = [slime_rollout_data(0), slime_rollout_data(1)]
    sample = SimpleNamespace(rollout_routed_experts=data[1]["rollout_routed_experts"][2], tokens=[0] * 4)
    names["count_sample"](sample)
    data[1]["rollout_routed_experts"][0] = data[1]["rollout_routed_experts"][0][:-1]
    with caplog.at_level(logging.WARNING):
        names["start_planning"](8, data)
        names["reporting"]._pool.submit(int).result()
        names["start_planning"](9, [slime_rollout_data(0), slime_rollout_data(1)])
        names["reporting"].wait()
    assert "a report in the background failed, so its steps have no plans: routed_experts" in caplog.text
    assert (
        "by rollout 9, a rollout has no plans: routed_experts: expected a row for every token but the last"
        in caplog.text
    )
    for step in (14, 15, 18, 19):
        check_plan_of("slime", shared_planner.address, step)


@pytest.mark.usefixtures("one_process")
def test_verl(shared_planner: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = {"step": 7, "data": verl_data(0), "micro_batches": [None] * 2, "indices": [[2], [0, 3, 1]]}
    names = run_page("verl", names, shared_planner.address, tmp_path)
    check_plan_of("verl", shared_planner.address, 7)
    # Input that verl would refuse stops neither the ranks that wait for each other nor the training.
    with caplog.at_level(logging.WARNING):
        names["plan_step"](8, 0, True, verl_data(0), [None] * 2, [[2], [0, 3]])
    assert "step 8 has no plan: micro_batches: expected each of sequences 0 to 3 once" in caplog.text


def test_nemo_rl(shared_planner: Service, tmp_path: Path) -> None:
    names = {"step": 0, "batches": [nemo_batch(0), nemo_batch(1)]}
    run_page("nemo-rl", names, shared_planner.address, tmp_path)["reporting"].wait()
    check_plan_of("nemo-rl", shared_planner.address, 0)


@pytest.mark.usefixtures("one_process")
def test_skyrl(shared_planner: Service, tmp_path: Path) -> None:
    run_page("skyrl", {"step": 2, "batch": skyrl_batch(0)}, shared_planner.address, tmp_path)
    check_plan_of("skyrl", shared_planner.address, 2)


def test_plain_megatron(shared_planner: Service, tmp_path: Path) -> None:
    payloads = [all_layers(rows, LAYERS, "int32") for rows in sequence_rows(0)]
    run_page("plain-megatron", {"step": 1, "payloads": payloads}, shared_planner.address, tmp_path)
    check_plan_of("plain-megatron", shared_planner.address, 1)


def test_areal(shared_planner: Service, tmp_path: Path) -> None:
    responses = [
        (
            f"sequence-{place}",
            SimpleNamespace(
                input_tokens=[0] * 3, output_tokens=[0] * (len(rows) - 2), routed_experts=areal(rows, LAYERS)
            ),
        )
        for place, rows in enumerate(sequence_rows(0))
    ]
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    with PlannerClient(shared_planner.address) as client:
        client.register_job("page-areal", MODEL, cluster)
        names = {
            "step": 4,
            "responses": responses,
            "planner": client,
            "sequence_ids": [name for name, _ in responses],
            "schedule": Schedule.round_robin(4, 2, cluster),
        }
        run_page("areal", names, shared_planner.address, tmp_path)
        assert client.fetch_plan("page-areal", 4, MODEL, 0, wait_s=60).basis is Basis.ROLLOUT
    check_plan_of("areal", shared_planner.address, 4)


def test_prime_rl(tmp_path: Path) -> None:
    first, second = prime_micro_batches()
    run_page("prime-rl", {"micro_batches_of_ranks": [[first], [second]], "folder": tmp_path}, "", tmp_path)
    trace = read_trace(tmp_path / "step.npz")
    assert trace.schedule is not None
    assert set(zip(trace.source_rank.tolist(), trace.micro_batch.tolist(), strict=True)) == {(0, 0), (1, 0)}
    assert len(trace.routed_experts) == sum(LENGTHS[0]) + sum(LENGTHS[1])


def test_forecast(shared_planner: Service, tmp_path: Path) -> None:
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    load_LE = np.random.default_rng(0).integers(100, 200, (2, 8)) * np.arange(1, 9)
    routed_TLK = np.stack([np.repeat(np.arange(8), 2 * load_E // load_E.min()) for load_E in [np.arange(1, 9)] * 2], 1)
    trained: list[int] = []
    names = {
        "step": 0,
        "num_micro_batches": 2,
        "train": trained.append,
        "routed_in": lambda step: [("all", np.stack([routed_TLK, (routed_TLK + 1) % 8], axis=-1))],
        "num_sequences": 16,
        "home_rank": cluster.identity_placement(MODEL),
        "previous_loads": [load_LE],
        "actual_load": StepLoad.of(np.broadcast_to(load_LE, (16, 2, 8)), Schedule.round_robin(16, 2, cluster), cluster),
    }
    names = run_page("forecast", names, shared_planner.address, tmp_path)
    assert trained == [0]
    assert names["plan"].prediction.basis is Basis.PREVIOUS_STEPS
    assert names["loads"].sum() == 16 * load_LE.sum()
    names["submit_forecast"](names["planner"], "page-forecast", 1, 2, cluster)
    check_plan_of("forecast", shared_planner.address, 1)
