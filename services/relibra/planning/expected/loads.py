"""Loads of micro-batches that a step may have, where its own are not known.

Ranks split the tokens that really come, so a plan for such loads is executed like any other: where they differ from the
real ones, the copies fit less well, and nothing else.

M rows, N micro-batches, L layers, E experts, S sequences.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster
from relibra.planning.load import StepLoad
from relibra.planning.schedule import Schedule

WINDOW = 4
"""Earlier steps that count. Fewer follow a change of the data sooner, but where there is none their plans are worse."""
_DEALT_ROWS = 32
"""Micro-batches to which a step is dealt. With 4, plans were 1.3 to 2.8 times as far from balance (imbalance - 1)."""
_DEALT_MICRO_BATCHES = 4
"""The real number of an EP group is unknown. It matters, because copies cost time and pay only for enough tokens. On
gpt-oss-20b and moonlight-16b with the prices of H100, plans for 4 gave up at most 0.3 points of throughput in steps of
16 and 32, and plans for 32 up to 20 points in steps of 4."""


def mean_micro_batch(seen_NLE: NDArray[np.integer], cluster: Cluster) -> tuple[StepLoad, Schedule]:
    """Return the load and the schedule of a step with one micro-batch in every EP group: the mean of those seen."""
    mean = seen_load(np.rint(seen_NLE.mean(axis=0, keepdims=True)).astype(np.int64), cluster)
    group_S = np.repeat(np.arange(cluster.num_ep_groups), cluster.num_nodes)
    schedule = Schedule(
        micro_batch_S=np.zeros(len(group_S), dtype=np.int32),
        source_rank_S=np.tile(mean.source_rank_S, cluster.num_ep_groups),
        ep_group_S=group_S.astype(np.int32),
    )
    return StepLoad.of(np.tile(mean.counts_SLE, (cluster.num_ep_groups, 1, 1)), schedule, cluster), schedule


def micro_batches_of(counts_SLE: NDArray[np.integer], row_S: NDArray[np.integer]) -> NDArray[np.int64]:
    """Deal the sequences of steps to micro-batches, as if each step had been scheduled like the coming one.

    Args:
        counts_SLE: the sequences of one or more steps, oldest first.
        row_S: the row of every sequence of the coming step, which says how many sequences a step has.

    Returns:
        The loads of the micro-batches of the last `WINDOW` steps, int64 `[N, L, E]`, without empty ones. Sequences that
        fill no whole step count only where there is none.
    """
    per_step, num_rows = len(row_S), int(row_S.max()) + 1
    num_steps = min(max(len(counts_SLE) // per_step, 1), WINDOW)
    seen = np.zeros((num_steps * num_rows, *counts_SLE.shape[1:]), dtype=np.int64)
    for number, counts_LE in enumerate(counts_SLE[-num_steps * per_step :]):
        step, place = divmod(number, per_step)
        seen[step * num_rows + row_S[place]] += counts_LE.astype(np.int64, copy=False)
    return seen[seen.any(axis=(1, 2))]


def deal_often(counts_SLE: NDArray[np.integer], cluster: Cluster) -> NDArray[np.int64]:
    """Deal the sequences of one step to micro-batches in several orders, of which the step may have any.

    Args:
        counts_SLE: the sequences.
        cluster: the EP groups among which the step is divided.

    Returns:
        The loads of the micro-batches of all orders, int64 `[N, L, E]`; about `_DEALT_ROWS`, so that planning takes no
        longer for few EP groups than for many.
    """
    rng = np.random.default_rng(0)
    num_sequences, num_rows = len(counts_SLE), _DEALT_MICRO_BATCHES * cluster.num_ep_groups
    row_S = np.arange(num_sequences) % num_rows
    orders = [rng.permutation(num_sequences) for _ in range(max(1, _DEALT_ROWS // num_rows))]
    return np.concatenate([micro_batches_of(counts_SLE[order_S], row_S) for order_S in orders])


def seen_load(seen_NLE: NDArray[np.integer], cluster: Cluster) -> StepLoad:
    """Return micro-batches as a load, a row each. Their tokens come from all nodes in equal parts.

    Tokens that nodes cannot divide come from the first ones.
    """
    num_rows, num_nodes = len(seen_NLE), cluster.num_nodes
    node_N = np.arange(num_nodes)[:, None, None]
    counts_MNLE = (seen_NLE[:, None] + num_nodes - 1 - node_N) // num_nodes
    return StepLoad(
        counts_SLE=counts_MNLE.reshape(num_rows * num_nodes, *seen_NLE.shape[1:]),
        row_S=np.repeat(np.arange(num_rows, dtype=np.int32), num_nodes),
        source_rank_S=np.tile(np.arange(num_nodes, dtype=np.int32) * np.int32(cluster.gpus_per_node), num_rows),
        num_rows=num_rows,
        num_ranks=cluster.num_ranks,
    )
