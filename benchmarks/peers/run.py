"""Run what others publish on the loads of docs/evaluation.md, and judge their answers and ours by one simulation.

    python -m benchmarks.peers DIR [--case MODEL:EP]

DIR has the checkouts that `python -m benchmarks.peers.checkouts DIR` makes. A peer without a checkout is named and left
out. Needs the traces, and minutes of a core. A run of all cases writes `results/peers.json`; `tables` shows it.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.evaluation.cases import DISPATCHERS
from benchmarks.peers.answers import same_cells
from benchmarks.peers.cases import CASES
from benchmarks.peers.cells import CELLS
from benchmarks.peers.peer import Decides, Peer, clocked
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


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the judge says of a planner in one case."""

    planner: str
    decides: str
    imbalance: float
    of_balanced: float
    """Throughput relative to forced balance, in the model of time."""
    cpu_us_per_decision: float
    """Processor time of one layer of the step, or of one cell if the planner decides in every cell."""
    cpu_ms: float
    """Processor time of the whole step."""
    num_moved_experts: int
    replicas_per_cell: float
    same_as_ours: float | None = None
    """The share of cells in which our reimplementation gives the same answer, None if there is none."""
    imbalance_of_ours: float | None = None
    """The imbalance of our reimplementation."""


def judge(steps: tuple[Workload, Workload], asked: Question, peers: Sequence[Peer], folder: Path) -> list[Judged]:
    """Let plain expert parallelism, relibra and the peers balance the second of two steps.

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
    outcomes = simulate(now, before, asked.training, ("plain",), num_threads=1, others=policies)
    by_name = {peer.name: peer for peer in peers}
    judged = []
    for outcome in outcomes:
        peer = by_name.get(outcome.policy)
        decides = Decides.EACH_CELL if peer is None else peer.decides
        num_decisions = load_MLE.shape[1] * (len(load_MLE) if decides is Decides.EACH_CELL else 1)
        same = imbalance_of_ours = None
        if peer is not None and peer.ours is not None:
            ours = peer.ours(load_MLE, model, cluster)
            same = same_cells(answers[peer.name], ours)
            imbalance_of_ours = imbalance(ours.rank_loads_MLR(cluster))
        judged.append(
            Judged(
                planner=outcome.policy,
                decides=decides.value,
                imbalance=outcome.imbalance,
                of_balanced=outcome.of_balanced.mid,
                cpu_us_per_decision=outcome.decide_time_s / num_decisions * 1e6,
                cpu_ms=outcome.decide_time_s * 1e3,
                num_moved_experts=outcome.num_moved_experts,
                replicas_per_cell=outcome.replicas_per_cell,
                same_as_ours=same,
                imbalance_of_ours=imbalance_of_ours,
            )
        )
    return judged


def present(folder: Path) -> tuple[list[Peer], dict[str, str]]:
    """Return the peers that can run from a folder of checkouts, and why each of the others cannot."""
    left_out = {peer.name: why for peer in PEERS if (why := peer.absence(folder)) is not None}
    return [peer for peer in PEERS if peer.name not in left_out], left_out


def main() -> None:
    """Run the cases, print a table for each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of checkouts")
    parser.add_argument("--case", choices=[case.name for case in CASES], help="only this case; writes no results")
    arguments = parser.parse_args()
    peers, left_out = present(arguments.folder)
    console = Console(width=140)
    _say(console, left_out)
    if not peers:
        sys.exit(f"no peer has a checkout in {arguments.folder}: python -m benchmarks.peers.checkouts DIR")
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for case in CASES:
        if arguments.case in (None, case.name):
            steps = case.steps()
            for dispatcher in DISPATCHERS:
                found = judge(steps, replace(case.question, dispatcher=dispatcher), peers, arguments.folder)
                console.print(_table(f"{case.name}, {dispatcher.value}", found))
                where = {"model": case.model, "ep": case.ep, "dispatcher": dispatcher.value}
                rows += [{**where, **asdict(each)} for each in found]
    _say(console, left_out)
    if arguments.case is None:
        files = {peer.name: f"{peer.file} {peer.digest(arguments.folder)}" for peer in peers}
        print(results.write("peers", rows, left_out=left_out, files=files, redundant_slots=2))


def _say(console: Console, left_out: Mapping[str, str]) -> None:
    for name, why in left_out.items():
        console.print(f"[bold red]LEFT OUT[/]: {name}: {why}", highlight=False)


def _table(title: str, judged: Sequence[Judged]) -> Table:
    table = Table(title=title)
    for heading in (
        "planner",
        "imbalance",
        "of balance",
        "us a decision",
        "ms a step",
        "moved",
        "replicas",
    ):
        table.add_column(heading, justify="left" if heading == "planner" else "right")
    table.add_column("same as ours", justify="right")
    for each in judged:
        same = "" if each.same_as_ours is None else f"{each.same_as_ours:.1%} ({each.imbalance_of_ours:.4f})"
        table.add_row(
            each.planner,
            f"{each.imbalance:.4f}",
            f"{each.of_balanced:.1%}",
            f"{each.cpu_us_per_decision:.0f}",
            f"{each.cpu_ms:.0f}",
            str(each.num_moved_experts),
            f"{each.replicas_per_cell:.1f}",
            same,
        )
    return table
