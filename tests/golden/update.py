"""Pin plans by digest, so that any change of an algorithm shows as a change of `plans.json`.

    python tests/golden/update.py            plan every case anew and write plans.json
    python tests/golden/update.py --print    only plan the synthetic cases, and print their digests

Run it after a change that is meant to change plans, and judge the imbalances beside the digests in the diff. Cases of
real routing need the traces, from RELIBRA_TRACES or `../shared/traces` beside the repository. Without them, these cases
keep their lines.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation import load_of, model_of, schedule_of
from relibra.planning import Cluster, Model, Plan, PlanParams, Schedule, StepLoad
from relibra.planning.solve import solve
from relibra.routing import read_trace

PLANS_FILE = Path(__file__).with_name("plans.json")
_BESIDE = Path(__file__).parents[3] / "shared" / "traces"

TRACES = ("gpt-oss-20b_mmlu", "deepseek-v2-lite_esft")
SEEDS = {1: 0, 2: 1, 4: 2}
"""The seed of the search for each number of nodes."""


def hashed(*shape: int) -> NDArray[np.uint64]:
    """Return numbers below 2**64 that look random and are equal for every version of numpy (splitmix64)."""
    z = np.arange(np.prod(shape), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).reshape(shape)


def synthetic_plans(num_threads: int = 1) -> Iterator[tuple[str, Plan]]:
    """Plan a synthetic load with two EP groups and a few hot experts."""
    cluster = Cluster(num_nodes=3, gpus_per_node=4, redundant_slots=2, num_ep_groups=2)
    model = Model(num_layers=4, num_experts=48, top_k=4, expert_weight_size_bytes=10, expert_state_size_bytes=70)
    popularity_LE = 1 + (hashed(4, 48) % np.uint64(32)) ** np.uint64(3) // np.uint64(300)
    counts_SLE = (hashed(96, 4, 48) % (np.uint64(2) * popularity_LE)).astype(np.uint32)
    schedule = Schedule.round_robin(96, 4, cluster)
    params = PlanParams(seed=3, min_tokens_per_replica=5)
    load = StepLoad.of(counts_SLE, schedule, cluster)
    yield "synthetic 3x4", solve(load, schedule, model, cluster, params, num_threads=num_threads)


def trace_plans(folder: Path, name: str) -> Iterator[tuple[str, Plan]]:
    """Plan a trace on 1, 2 and 4 nodes of 8 GPUs, with the round-robin schedule."""
    trace = read_trace(folder / f"{name}.npz")
    for num_nodes, seed in SEEDS.items():
        cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=2)
        schedule = schedule_of(trace, cluster)
        load = load_of(trace, schedule, cluster)
        yield f"{name} {num_nodes}x8", solve(load, schedule, model_of(trace), cluster, PlanParams(seed=seed))


def entry(plan: Plan) -> dict[str, object]:
    """Return the pinned line of a plan: its digest, and what it achieves, for people."""
    return {
        "digest": plan.digest.hex(),
        "imbalance": round(plan.prediction.imbalance_after, 5),
        "replicas": plan.prediction.num_replicas,
        "moved": plan.prediction.num_moved_experts,
    }


def main() -> None:
    """Write the file, or print digests."""
    plans = dict(synthetic_plans())
    if "--print" in sys.argv:
        print(json.dumps({name: plan.digest.hex() for name, plan in plans.items()}))
        return
    folder = Path(os.environ.get("RELIBRA_TRACES") or _BESIDE)
    for name in TRACES:
        if folder.is_dir():
            plans |= trace_plans(folder, name)
        else:
            print(f"{folder} does not exist: the pinned plans of {name} stay as they are", file=sys.stderr)
    pinned = json.loads(PLANS_FILE.read_text()) if PLANS_FILE.exists() else {}
    for name, plan in plans.items():
        if pinned.get(name) != entry(plan):
            print(f"{name}: {pinned.get(name)} -> {entry(plan)}")
        pinned[name] = entry(plan)
    PLANS_FILE.write_text(json.dumps(pinned, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
