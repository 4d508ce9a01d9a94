"""Draw what a plan does to one cell of recorded routing: `docs/images/concept-balance.svg`.

    python -m benchmarks.balance

Plans a step of gpt-oss-20b on two nodes of four ranks, takes the cell whose imbalance under plain expert parallelism is
the median, and writes its loads to `results/balance.json`.

M rows, L layers, R EP ranks, Q quotas of the cell.
"""

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from benchmarks import results
from benchmarks.drawing import write_figure
from relibra.evaluation import model_of
from relibra.planning import Cluster, Schedule, StepLoad
from relibra.planning.solve import solve
from relibra.routing import count_sequences, read_trace

_TRACE = "gpt-oss-20b_mmlu"
_NUM_MICRO_BATCHES = 16
_CLUSTER = Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=2)
_HOME_COLOUR, _REPLICA_COLOUR, _SLOWEST_COLOUR = "#2a7f62", "#e0a030", "#b3261e"

Loads = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The tokens that each rank computes for experts it is home of, and for replicas."""


def plan_cell() -> dict[str, Loads]:
    """Plan the step; return the cell's loads plain, after reordering, and after replicating."""
    trace = read_trace(results.TRACES / f"{_TRACE}.npz")
    counts_SLE, model = count_sequences(trace), model_of(trace)
    schedule = Schedule.round_robin(trace.num_sequences, _NUM_MICRO_BATCHES, _CLUSTER)
    order_S = np.random.default_rng(0).permutation(trace.num_sequences)
    load = StepLoad.of(counts_SLE[order_S], schedule, _CLUSTER)
    plan = solve(load, schedule, model, _CLUSTER)

    load_MLE = load.load_MLE
    plain_MLR = load_MLE.reshape(*load_MLE.shape[:2], _CLUSTER.num_ranks, -1).sum(axis=-1)
    imbalance_C = (plain_MLR.max(axis=-1) / plain_MLR.mean(axis=-1)).ravel()
    row, layer = divmod(int(np.argsort(imbalance_C)[imbalance_C.size // 2]), load_MLE.shape[1])

    def per_rank(rank: NDArray[np.integer], tokens: NDArray[np.integer]) -> NDArray[np.int64]:
        return np.bincount(rank, weights=tokens, minlength=_CLUSTER.num_ranks).astype(np.int64)

    in_cell = (plan.quotas.index_Q4[:, 0] == row) & (plan.quotas.index_Q4[:, 1] == layer)
    rank_Q, tokens_Q = plan.quotas.index_Q4[in_cell, 3], plan.quotas.tokens_Q[in_cell]
    is_replica_Q = plan.quotas.is_replica_Q[in_cell]
    none_R = np.zeros(_CLUSTER.num_ranks, dtype=np.int64)
    reordered_R = per_rank(plan.home_rank_LE[layer], load_MLE[row, layer])
    return {
        "plain expert parallelism": (plain_MLR[row, layer], none_R),
        "experts reordered, once per step": (reordered_R, none_R),
        "hot experts replicated, per cell": (
            per_rank(rank_Q, tokens_Q * ~is_replica_Q),
            per_rank(rank_Q, tokens_Q * is_replica_Q),
        ),
    }


def draw(axis: Axes, title: str, loads: Loads) -> None:
    """Draw one panel: a bar per rank, the mean of each node, and the rank that all others wait for."""
    rank_R, (home_R, replica_R), total_R = np.arange(_CLUSTER.num_ranks), loads, sum(loads)
    node_mean_N = total_R.reshape(_CLUSTER.num_nodes, -1).mean(axis=1)
    axis.bar(rank_R, home_R, color=_HOME_COLOUR, label="tokens of experts at home")
    axis.bar(rank_R, replica_R, bottom=home_R, color=_REPLICA_COLOUR, label="tokens of replicas")
    axis.axhline(total_R.max(), color=_SLOWEST_COLOUR, linestyle="--", label="slowest rank: the layer ends here")
    for node, mean in enumerate(node_mean_N):
        left = node * _CLUSTER.gpus_per_node - 0.5
        axis.hlines(mean, left, left + _CLUSTER.gpus_per_node, color="black", label=None if node else "mean of a node")
    slowest, slowest_node = (each.max() / total_R.mean() for each in (total_R, node_mean_N))
    axis.set_title(f"{title}\nslowest rank / mean: {slowest:.2f}\nslowest node / mean: {slowest_node:.2f}")
    axis.set_xticks(rank_R, [str(rank) for rank in rank_R])
    axis.set_xlabel("node 0: ranks 0 to 3; node 1: ranks 4 to 7")
    axis.grid(axis="x", visible=False)


def main() -> None:
    """Write the loads and the figure."""
    panels = plan_cell()
    rows = [
        {"placement": title, "home_tokens": home_R.tolist(), "replica_tokens": replica_R.tolist()}
        for title, (home_R, replica_R) in panels.items()
    ]
    results.write("balance", rows, trace=_TRACE, micro_batches=_NUM_MICRO_BATCHES, redundant_slots=2)

    def draw_all(axes: list[Axes]) -> None:
        for axis, (title, loads) in zip(axes, panels.items(), strict=True):
            draw(axis, title, loads)
        axes[0].set_ylabel("tokens")
        axes[0].set_ylim(0, 1.05 * max(int(sum(loads).max()) for loads in panels.values()))

    write_figure("concept-balance", draw_all, num_panels=len(panels), size=(11, 3.8), legend_columns=4)


if __name__ == "__main__":
    main()
