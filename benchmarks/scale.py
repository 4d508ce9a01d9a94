"""The plan time and memory of large steps, and their growth.

    taskset -c 0 python -m benchmarks.scale [--threads 1] [--case NAME]

Loads are mixtures of the workloads in `deepseek-v3_counts_dev.npz` (see `workload_mix`). Every case runs in its own
process with compiled code already loaded; times are the least of several calls. `input_mib` is the memory of that
process before it plans, with the counts; `peak_mib` is its largest memory. `publish_s` is the time to check and encode
the plan, and `begin_ms` that of a rank in `begin_step`, without what it waits for. `exponent` is the power of
the extent that grew since the row before with which plan time grew. A run of all cases writes `results/scale.json`.
"""

import argparse
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import results
from benchmarks.workload_mix import mix_workloads
from relibra.agent.cells.cells import StepCells
from relibra.agent.plans import agreement
from relibra.planning import (
    Cluster,
    CostModel,
    Model,
    PlanId,
    PlanParams,
    Schedule,
    StepLoad,
    StepPlan,
    check_plan,
    check_step_plan,
)
from relibra.planning.places import Placement
from relibra.planning.replicas.replicate import replicate
from relibra.planning.solve import solve
from relibra.store import EncodedPlan

_TOP_K = 8
_EXPERT_SIZE_BYTES = 88_080_384
"""The weights of an expert of DeepSeek-V3, for the price of dispatch."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A step to plan."""

    case: str
    num_nodes: int = 8
    gpus_per_node: int = 8
    num_ep_groups: int = 1
    num_micro_batches: int = 32
    num_layers: int = 58
    num_experts: int = 256
    token_size_bytes: int = 0
    """The bytes that dispatch and combine of a token copy move, in an all-to-all; 0 makes dispatch free."""
    num_calls: int = 5


_CASES = [
    Case(case="target"),
    Case(case="all-to-all", token_size_bytes=28_672),
    *(Case(case="layers", num_layers=number) for number in (15, 29, 116)),
    *(Case(case="micro-batches", num_micro_batches=number) for number in (8, 16, 64, 128)),
    *(Case(case="experts", num_experts=number) for number in (64, 128, 512)),
    *(Case(case="nodes", num_nodes=number) for number in (1, 2, 4, 16, 32)),
    *(Case(case="nodes, 512 experts", num_nodes=number, num_experts=512, num_calls=2) for number in (16, 32, 64)),
    Case(case="512 ranks", num_nodes=64, num_micro_batches=128, num_experts=512, num_calls=2),
    *(
        Case(case="EP groups of 512 ranks", num_nodes=64, num_ep_groups=number, num_experts=512, num_calls=2)
        for number in (1, 2)
    ),
    *(Case(case="EP groups", num_ep_groups=number, num_calls=2) for number in (1, 2, 4, 8, 16)),
    Case(case="8 EP groups", num_ep_groups=8, num_micro_batches=128, num_calls=2),
]


def _least_s(call: Callable[[], object], num_calls: int) -> float:
    times_s = []
    for _ in range(num_calls):
        started_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - started_s)
    return min(times_s)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _draw(case: Case, cluster: Cluster) -> tuple[StepLoad, Schedule]:
    num_rows = case.num_ep_groups * case.num_micro_batches
    num_sequences = num_rows * (64 if num_rows <= 32 else 16)
    with np.load(results.TRACES / "deepseek-v3_counts_dev.npz") as file:
        expert_counts_WLE = file["expert_counts"]
    counts_SLE = mix_workloads(
        expert_counts_WLE,
        num_sequences=num_sequences,
        tokens_per_sequence=8192 * cluster.num_ranks * num_rows // num_sequences,
        top_k=_TOP_K,
        seed=0,
        num_experts=case.num_experts,
        num_layers=case.num_layers,
    )
    index_S = np.arange(num_sequences, dtype=np.int32)
    schedule = Schedule(
        micro_batch_S=index_S % np.int32(case.num_micro_batches),
        source_rank_S=index_S // np.int32(num_rows) % np.int32(cluster.num_ranks),
        ep_group_S=index_S // np.int32(case.num_micro_batches) % np.int32(case.num_ep_groups),
    )
    return StepLoad.of(counts_SLE, schedule, cluster), schedule


def _begin(plan: StepPlan, here: Placement, model: Model, cluster: Cluster) -> StepCells:
    """Begin a step without moves as rank 0 does when its plan is in hand and the offers of all ranks are there."""
    check_step_plan(plan, model, cluster)
    offer = agreement.Offer(step=plan.step, plan_id=plan.id, digest=plan.digest)
    gathered = offer.to_tensor().repeat(cluster.num_ranks * cluster.num_ep_groups, 1)
    assert agreement.decide([agreement.Offer.from_tensor(of_rank) for of_rank in gathered.unbind()]).plan_id == plan.id
    placement = here.with_homes(plan.home_rank_LE)
    return StepCells(placement, cluster, ep_group=0, ep_rank=0, plan=plan, device=torch.device("cpu"))


def _load_machine_code() -> None:
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    schedule = Schedule.round_robin(2, 1, cluster)
    load = StepLoad.of(np.arange(16, dtype=np.uint32).reshape(2, 1, 8), schedule, cluster)
    solve(load, schedule, Model(num_layers=1, num_experts=8, top_k=1), cluster)


def _run(case: Case, num_threads: int) -> dict[str, Any]:
    cluster = Cluster(
        num_nodes=case.num_nodes,
        gpus_per_node=case.gpus_per_node,
        redundant_slots=2,
        num_ep_groups=case.num_ep_groups,
    )
    model = Model(num_layers=case.num_layers, num_experts=case.num_experts, top_k=_TOP_K)
    load, schedule = _draw(case, cluster)
    _load_machine_code()
    params = PlanParams()
    if case.token_size_bytes:
        params = PlanParams(cost=CostModel.of_expert(_EXPERT_SIZE_BYTES, case.token_size_bytes))
    input_mib = _resident_mib()
    plan = solve(load, schedule, model, cluster, params, num_threads=num_threads)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def publish() -> None:
        check_plan(plan, load.load_MLE)
        EncodedPlan.of(plan)

    step_plan = StepPlan.of(plan, id=PlanId(epoch=1, version=1), step=1)
    here = Placement.of_homes(plan.home_rank_LE)
    plan_s = _least_s(lambda: solve(load, schedule, model, cluster, params, num_threads=num_threads), case.num_calls)
    replicate_s = _least_s(lambda: replicate(load.load_MLE, plan.home_rank_LE, cluster), case.num_calls)
    num_cells = plan.lower_bound_ML.size
    return {
        **{key: value for key, value in asdict(case).items() if key != "num_calls"},
        "num_cells": num_cells,
        "identity": plan.prediction.imbalance_before,
        "planned": plan.prediction.imbalance_after,
        "bound": plan.prediction.imbalance_bound,
        "replicas_per_rank": plan.prediction.num_replicas / num_cells / cluster.num_ranks,
        "plan_time_s": plan_s,
        "plan_us_per_cell": plan_s / num_cells * 1e6,
        "publish_s": _least_s(publish, case.num_calls),
        "begin_ms": _least_s(lambda: _begin(step_plan, here, model, cluster), case.num_calls) * 1e3,
        "replicate_us_per_cell": replicate_s / num_cells * 1e6,
        "input_mib": input_mib,
        "peak_mib": peak_mib,
    }


def _tell_growth(rows: list[dict[str, Any]]) -> None:
    """Add to each row how plan time grew since the row before: as which power of the extent that grew."""
    for before, row in pairwise(rows):
        grown = [name for name in row if name.startswith("num_") and name != "num_cells" and row[name] != before[name]]
        if row["case"] == before["case"]:
            (name,) = grown
            row["exponent"] = log(row["plan_time_s"] / before["plan_time_s"]) / log(row[name] / before[name])


def main() -> None:
    """Measure, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads that planning uses")
    parser.add_argument("--case", help="only cases of this name, without writing results")
    arguments = parser.parse_args()
    rows = []
    for case in _CASES:
        if arguments.case in (None, case.case):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                rows.append(pool.apply(_run, (case, arguments.threads)))
    _tell_growth(rows)
    results.show(f"large steps, 2 redundant slots, {arguments.threads} thread(s)", rows)
    if arguments.case is None:
        results.write("scale", rows, threads=arguments.threads, redundant_slots=2)


if __name__ == "__main__":
    main()
