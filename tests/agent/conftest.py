"""Hypothesis strategies for clusters, placements and plans, and a node of four processes that is started once."""

import json
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness import child_process
from relibra.planning import Cluster, Model, PlanId, StepPlan, check_step_plan


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Model, Cluster]:
    cluster = Cluster(
        num_nodes=draw(st.integers(1, 3)),
        gpus_per_node=draw(st.integers(1, 3)),
        redundant_slots=draw(st.integers(0, 3)),
        num_ep_groups=draw(st.integers(1, 2)),
    )
    num_experts = cluster.num_ranks * draw(st.integers(1, 3))
    return Model(num_layers=draw(st.integers(1, 3)), num_experts=num_experts, top_k=1), cluster


def random_homes(rng: np.random.Generator, model: Model, cluster: Cluster) -> NDArray[np.int32]:
    return np.stack([rng.permutation(home_E) for home_E in cluster.identity_placement(model)]).astype(np.int32)


def random_plan(rng: np.random.Generator, model: Model, cluster: Cluster, num_micro_batches: int) -> StepPlan:
    """Return a valid plan."""
    home_LE = random_homes(rng, model, cluster)
    index = []
    for row in range(cluster.num_ep_groups * num_micro_batches):
        for layer in range(model.num_layers):
            for rank in range(cluster.num_ranks):
                home_E = home_LE[layer]
                near_E = np.flatnonzero(
                    (home_E // cluster.gpus_per_node == rank // cluster.gpus_per_node) & (home_E != rank)
                )
                number = min(int(rng.integers(0, cluster.redundant_slots + 1)), len(near_E))
                index += [(row, layer, int(expert), rank) for expert in rng.choice(near_E, number, replace=False)]
    plan = StepPlan(
        id=PlanId(epoch=1, version=1),
        step=0,
        digest=b"",
        home_rank_LE=home_LE,
        replica_index_Y4=np.array(sorted(index), dtype=np.int32).reshape(-1, 4),
        num_micro_batches=num_micro_batches,
        reason="random",
    )
    check_step_plan(plan, model, cluster)
    return plan


@pytest.fixture(scope="session")
def some() -> SimpleNamespace:
    return SimpleNamespace(shapes=shapes(), homes=random_homes, plan=random_plan)


@pytest.fixture(scope="session")
def node_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """Return the results of a scenario from every rank of a node. The test fails if a rank raised or did not finish."""
    folder = tmp_path_factory.mktemp("node")
    command = child_process.command("harness.agent.node_ranks", str(folder))
    log = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=child_process.environment(OMP_NUM_THREADS="1"),
    ).stderr
    by_rank = [json.loads(file.read_text()) for file in sorted(folder.glob("rank*.json"))]

    def of(scenario: str) -> list[dict[str, Any]]:
        results = [rank[scenario] for rank in by_rank if scenario in rank]
        failures = [result["error"] for result in results if "error" in result]
        if failures or not results:
            pytest.fail(f"{scenario} raised on {len(failures)} ranks, first:\n{(failures or [log[-3000:]])[0]}")
        return results

    return of
