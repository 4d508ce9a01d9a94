"""The blocks of docs/integrations run unchanged except for the planner's address, the job's name and the model file."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.doc_blocks import python_of
from harness.engine_payloads import areal, routes
from harness.services import Service
from relibra.planning import Cluster, Model, Schedule
from relibra.planning.plan import Level
from relibra.routing import ModelLayers
from relibra.wire.client import PlannerClient

pytestmark = pytest.mark.integration

CONFIG = {"num_hidden_layers": 3, "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 2}
MODEL = Model(num_layers=2, num_experts=8, top_k=2)
LAYERS = ModelLayers(num_experts=8, top_k=2, is_moe=(False, True, True))
ROWS = [routes(seed, 12, LAYERS) for seed in range(4)]


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
    assert plan.replicas.count_ML.any()


def test_areal(shared_planner: Service, tmp_path: Path) -> None:
    responses = [
        (
            f"sequence-{place}",
            SimpleNamespace(
                input_tokens=[0] * 3, output_tokens=[0] * (len(rows) - 2), routed_experts=areal(rows, LAYERS)
            ),
        )
        for place, rows in enumerate(ROWS)
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
    check_plan_of("areal", shared_planner.address, 4)


def test_levels(shared_planner: Service, tmp_path: Path) -> None:
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    schedule = Schedule.round_robin(8, 2, cluster)
    routed_TLK = np.stack([np.repeat(np.arange(8), np.arange(1, 9))] * 2, axis=1)
    sequence_ids = [f"sequence-{place}" for place in range(schedule.num_sequences)]
    load_LE = np.tile(np.arange(1, 9), (2, 1))
    names = {
        "step": 1,
        "rollouts": [(name, np.stack([routed_TLK, (routed_TLK + 1) % 8], axis=-1)) for name in sequence_ids],
        "sequence_ids": sequence_ids,
        "micro_batch": schedule.micro_batch_S,
        "source_rank": schedule.source_rank_S,
        "ep_group": schedule.ep_group_S,
        "home_rank": cluster.identity_placement(MODEL),
        "micro_batches": np.stack([load_LE, load_LE[:, ::-1]]),
    }
    names = run_page("levels", names, shared_planner.address, tmp_path)
    assert names["plan"].prediction.level is Level.HISTORY
    with PlannerClient(shared_planner.address) as client:
        assert client.fetch_plan("page-levels", 1, MODEL, wait_s=60).level is Level.MICRO_BATCHES
