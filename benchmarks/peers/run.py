"""Run what others publish on the loads of docs/evaluation.md, and judge their answers and ours by one simulation.

    python -m benchmarks.peers DIR [--case MODEL:EP]

DIR has the checkouts that `python -m benchmarks.peers.checkouts DIR` makes. A peer without a checkout is named and left
out. Needs the traces, and minutes of a core. A run of all cases writes `results/peers.json`; `tables` shows it.

Columns: `of_balanced` is the throughput relative to forced balance, in the model of time. `cpu_us_per_decision` is the
processor time of one layer of the step, or of one cell if the planner decides in every cell, and `cpu_ms` that of the
whole step. `same_as_ours` is the share of cells in which our reimplementation gives the same answer.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import results
from benchmarks.evaluation import counts
from benchmarks.evaluation.cases import DISPATCHERS, question
from benchmarks.peers.cells import CELLS
from benchmarks.peers.peer import Decides, Peer, clocked, same_cells
from benchmarks.peers.placements import PLACEMENTS
from relibra.evaluation.assignment import Assignment
from relibra.evaluation.policies import POLICIES
from relibra.evaluation.question import Question
from relibra.evaluation.simulation import simulate
from relibra.evaluation.workload import Workload
from relibra.planning.load import imbalance

PEERS: Sequence[Peer] = (*PLACEMENTS, *CELLS)
OURS = ("relibra", "replicate-only")
REIMPLEMENTED = "ultraep"
"""UltraEP's planner on the GPU, whose original runs nowhere else."""
CASES = {
    "gpt-oss-20b": (8, 16, 32),
    "moonlight-16b": (16, 32),
    "qwen3-30b-a3b": (32,),
    "deepseek-v3": (64,),
}
"""The EP sizes of each model, on nodes of 8 H100. gpt-oss-20b and moonlight-16b have recorded routing, qwen3-30b-a3b
has drawn routing, and deepseek-v3 the mixed expert counts of published workloads."""


def steps_of(model: str, ep: int) -> tuple[Workload, Workload]:
    """Return two consecutive steps of docs/evaluation.md."""
    return counts.steps(ep) if model == "deepseek-v3" else question(model, ep).steps(seed=0)


def judge(
    steps: tuple[Workload, Workload], asked: Question, peers: Sequence[Peer], folder: Path
) -> list[dict[str, Any]]:
    """Let plain expert parallelism, relibra and the peers balance the second of two steps; return a row for each.

    Args:
        steps: two consecutive steps.
        asked: which model trains on what machines.
        peers: those that have a checkout.
        folder: the folder of checkouts.
    """
    before, now = steps
    load_MLE, model, cluster = now.load.load_MLE, asked.model.model(), asked.cluster
    answers: dict[str, Assignment] = {}
    policies = {name: clocked(POLICIES[name]) for name in (*OURS, REIMPLEMENTED)}
    policies |= {peer.name: peer.policy(folder, partial(answers.__setitem__, peer.name)) for peer in peers}
    by_name, rows = {peer.name: peer for peer in peers}, []
    for outcome in simulate(now, before, asked.training, ("plain",), num_threads=1, others=policies):
        peer = by_name.get(outcome.policy)
        decides = Decides.EACH_CELL if peer is None else peer.decides
        num_decisions = load_MLE.shape[1] * (len(load_MLE) if decides is Decides.EACH_CELL else 1)
        row = {
            "planner": outcome.policy,
            "decides": decides.value,
            "imbalance": outcome.imbalance,
            "of_balanced": outcome.of_balanced.mid,
            "cpu_us_per_decision": outcome.decide_time_s / num_decisions * 1e6,
            "cpu_ms": outcome.decide_time_s * 1e3,
            "num_moved_experts": outcome.num_moved_experts,
            "replicas_per_cell": outcome.replicas_per_cell,
        }
        if peer is not None and peer.ours is not None:
            ours = peer.ours(load_MLE, model, cluster)
            row["same_as_ours"] = same_cells(answers[peer.name], ours)
            row["imbalance_of_ours"] = imbalance(ours.rank_loads_MLR(cluster))
        rows.append(row)
    return rows


def main() -> None:
    """Run the cases, print a table for each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of checkouts")
    parser.add_argument("--case", metavar="MODEL:EP", help="only this case; writes no results")
    arguments = parser.parse_args()
    left_out = {peer.name: why for peer in PEERS if (why := peer.absence(arguments.folder)) is not None}
    peers = [peer for peer in PEERS if peer.name not in left_out]
    for name, why in left_out.items():
        print(f"LEFT OUT: {name}: {why}")
    if not peers:
        sys.exit(f"no peer has a checkout in {arguments.folder}: python -m benchmarks.peers.checkouts DIR")
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for model, ep in ((model, ep) for model, sizes in CASES.items() for ep in sizes):
        if arguments.case in (None, f"{model}:{ep}"):
            steps, asked = steps_of(model, ep), question(model, ep)
            for dispatcher in DISPATCHERS:
                judged = judge(steps, replace(asked, dispatcher=dispatcher), peers, arguments.folder)
                results.show(f"{model}:{ep}, {dispatcher.value}", judged)
                where = {"model": model, "ep": ep, "dispatcher": dispatcher.value}
                rows += [{**where, **row} for row in judged]
    if not rows:
        sys.exit(f"expected a case among {CASES}, got {arguments.case}")
    if arguments.case is None:
        files = {peer.name: f"{peer.file} {peer.digest(arguments.folder)}" for peer in peers}
        results.write("peers", rows, left_out=left_out, files=files, redundant_slots=2)
