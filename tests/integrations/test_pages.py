"""The blocks of docs/integrations run unchanged except for the planner's address, the job's name and the model file."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.doc_blocks import python_of
from harness.engine_payloads import all_layers, areal
from harness.framework_batches import LAYERS, sequence_rows
from harness.services import Service
from relibra.planning import Cluster, Model, Schedule, StepLoad
from relibra.planning.plan import Level
from relibra.wire.client import PlannerClient

pytestmark = pytest.mark.integration

CONFIG = {"num_hidden_layers": 3, "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 2}
MODEL = Model(num_layers=2, num_experts=8, top_k=2)


def run_page(page: str, names: dict[str, Any], address: str, folder: Path) -> dict[str, Any]:
    """Run the blocks of a page in one namespace, and return it."""
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    for block in python_of(f"docs/integrations/{page}.md"):
        for stands, runs in (("planner:7420", address), ("my-job", f"page-{page}"), ("config.json", str(config))):
            block = block.replace(stands, runs)
        exec(block, names)
    return names


def check_plan_of(page: str, address: str, step: int, level: Level = Level.MICRO_BATCHES) -> None:
    with PlannerClient(address) as client:
        plan = client.fetch_plan(f"page-{page}", step, MODEL, wait_s=60)
    assert plan is not None
    assert plan.level is level
    assert plan.home_rank_LE.shape == (2, 8)
    assert len(plan.replica_index_Y4)


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
        }
        run_page("areal", names, shared_planner.address, tmp_path)
    check_plan_of("areal", shared_planner.address, 4, Level.STEP)


def test_forecast(tmp_path: Path) -> None:
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    load_LE = np.random.default_rng(0).integers(100, 200, (2, 8)) * np.arange(1, 9)
    names = {
        "cluster": cluster,
        "model": MODEL,
        "home_rank": cluster.identity_placement(MODEL),
        "micro_batches": np.stack([load_LE, load_LE[:, ::-1]]),
        "actual_load": StepLoad.of(np.broadcast_to(load_LE, (16, 2, 8)), Schedule.round_robin(16, 1, cluster), cluster),
    }
    names = run_page("forecast", names, "", tmp_path)
    assert names["plan"].prediction.level is Level.HISTORY
    assert names["loads"].sum() == 16 * load_LE.sum()
