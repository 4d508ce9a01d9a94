"""Random valid plans, and a plan source with scripted answers."""

import numpy as np
from numpy.typing import NDArray

from relibra.agent import PlanAnswer
from relibra.planning import Cluster, ExecutionReport, Model, PlanId, Replicas, StepPlan, check_step_plan


def random_homes(rng: np.random.Generator, model: Model, cluster: Cluster) -> NDArray[np.int32]:
    return np.stack([rng.permutation(home_E) for home_E in cluster.identity_placement(model)]).astype(np.int32)


def random_plan(
    seed: int,
    step: int,
    model: Model,
    cluster: Cluster,
    num_micro_batches: int,
    *,
    plan_id: PlanId | None = None,
    move: bool = True,
    replicate: bool = True,
) -> StepPlan:
    """Return a random plan: a placement, and replicas within nodes."""
    rng = np.random.default_rng(seed)
    home_LE = random_homes(rng, model, cluster) if move else cluster.identity_placement(model)
    index, num_rows = [], cluster.num_ep_groups * num_micro_batches
    for row in range(num_rows if replicate else 0):
        for layer in range(model.num_layers):
            for rank in range(cluster.num_ranks):
                node = rank // cluster.gpus_per_node
                home_E = home_LE[layer]
                near_E = np.flatnonzero((home_E // cluster.gpus_per_node == node) & (home_E != rank))
                number = min(int(rng.integers(0, cluster.redundant_slots + 1)), len(near_E))
                index += [(row, layer, expert, rank) for expert in rng.choice(near_E, number, replace=False)]
    plan = StepPlan(
        id=plan_id or PlanId(epoch=2**63 + 5, version=step + 1),
        step=step,
        digest=bytes([seed % 256]) * 32,
        home_rank_LE=home_LE,
        replicas=Replicas.of(np.array(sorted(index), np.int32).reshape(-1, 4), num_rows, model.num_layers),
        num_micro_batches=num_micro_batches,
        reason="random",
    )
    check_step_plan(plan, model, cluster)
    return plan


class ScriptedPlans:
    """A plan source with one scripted answer per step."""

    def __init__(self, answers: dict[int, StepPlan | None]) -> None:
        self.answers = answers
        self.prefetched: list[int] = []
        self.rolled_back: list[int] = []
        self.reports: list[ExecutionReport] = []
        self.closed = False

    def prefetch(self, step: int) -> None:
        self.prefetched.append(step)

    def wait(self, step: int, timeout_s: float) -> PlanAnswer:
        plan = self.answers.get(step)
        return PlanAnswer(plan, plan.reason if plan is not None else "the script has none")

    def report(self, report: ExecutionReport) -> None:
        self.reports.append(report)

    def rollback(self, step: int) -> None:
        self.rolled_back.append(step)

    def close(self) -> None:
        self.closed = True
