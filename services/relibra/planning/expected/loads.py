"""Loads that are estimated because routing is not replayed, or not recorded yet.

Ranks split the tokens that really come, so a plan for estimated loads is executed like any other: where the estimate is
wrong, the copies fit less well, and nothing else.

M rows, N micro-batches seen, L layers, E experts, R EP ranks, K top-k, S sequences or (row, source rank) pairs.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.job import Cluster, Model
from relibra.planning.load import StepLoad
from relibra.planning.schedule import Schedule

WINDOW = 4
"""Earlier steps that the estimate uses. With the default decay, the step before these would weigh 3 %."""


def expected_share(previous: Sequence[NDArray[np.integer]], decay: float = 0.5) -> NDArray[np.float64]:
    """Return the share of every expert in the token copies of its layer, float64 `[L, E]`, each layer summing to 1.

    This is EPLB's window of past loads, with weights that fall with age. Each step counts by its shares, so a long step
    does not outweigh a recent one. The experts of a layer without load get equal shares.

    Args:
        previous: loads `[M, L, E]` of earlier steps, oldest first; M may differ.
        decay: the weight of a step relative to the step after it; 1 weighs all steps equally.

    Raises:
        InvalidInput: there is no step, the decay is not above 0 and at most 1, or the steps are of different models.
    """
    if not previous:
        raise InvalidInput.of("previous", expected="loads of at least one step", got="none")
    if not 0 < decay <= 1:
        raise InvalidInput.of("decay", expected="above 0, at most 1", got=decay)
    shapes = sorted({load_MLE.shape[1:] for load_MLE in previous})
    if len(shapes) > 1:
        raise InvalidInput.of("previous", expected="[M, L, E] of one model", got=shapes)
    num_layers, num_experts = shapes[0]
    share_LE = np.zeros((num_layers, num_experts))
    for load_MLE in previous:
        total_LE = load_MLE.sum(axis=0, dtype=np.int64)
        share_LE = decay * share_LE + total_LE / np.maximum(total_LE.sum(axis=1, keepdims=True), 1)
    copies_L1 = share_LE.sum(axis=1, keepdims=True)
    expected_LE: NDArray[np.float64] = np.where(
        copies_L1 > 0, share_LE / np.where(copies_L1 > 0, copies_L1, 1), 1 / num_experts
    )
    return expected_LE


def expected_load(share_LE: NDArray[np.float64], tokens_MR: NDArray[np.integer], top_k: int) -> StepLoad:
    """Return the load that a step has if its tokens go to experts by their shares.

    Token copies are whole numbers, and those of a (row, source rank) sum to tokens x top-k in every layer.

    Args:
        share_LE: the share of every expert in its layer, as `expected_share` returns it.
        tokens_MR: tokens of the step by row and source rank.
        top_k: experts per token.
    """
    row_S, source_rank_S = np.nonzero(tokens_MR)
    return _load_of_pairs(share_LE, tokens_MR[row_S, source_rank_S], row_S, source_rank_S, tokens_MR.shape, top_k)


def expected_step(
    previous: Sequence[NDArray[np.integer]], schedule: Schedule, model: Model, cluster: Cluster
) -> StepLoad:
    """Return the load to expect of a step whose routing is not known at all.

    The step is assumed to have as many tokens as earlier steps on average, divided equally among its sequences. If
    there is no earlier step, the load is empty.

    Args:
        previous: loads `[L, E]` of earlier steps, each summed over its rows, oldest first.
        schedule: the schedule of the step.
        model: the MoE layers.
        cluster: the EP groups.
    """
    # A schedule of few sequences may have many rows and ranks; only pairs that have a sequence take memory.
    pair_S = schedule.row_S.astype(np.int64) * cluster.num_ranks + schedule.source_rank_S
    pair_S, num_sequences_S = np.unique(pair_S, return_counts=True)
    share_LE, tokens = np.zeros((model.num_layers, model.num_experts)), 0.0
    if previous:
        copies = sum(int(total_LE.sum()) for total_LE in previous) / len(previous)
        tokens = copies / (model.num_layers * model.top_k * schedule.num_sequences)
        share_LE = expected_share([total_LE[None] for total_LE in previous])
    tokens_S = np.rint(num_sequences_S * tokens).astype(np.int64)
    shape = (schedule.num_rows(cluster), cluster.num_ranks)
    return _load_of_pairs(share_LE, tokens_S, *np.divmod(pair_S, cluster.num_ranks), shape, model.top_k)


def micro_batches_of(counts_SLE: NDArray[np.integer], row_S: NDArray[np.integer]) -> NDArray[np.int64]:
    """Deal the sequences of earlier steps to micro-batches, as if each step had been scheduled like the coming one.

    Args:
        counts_SLE: the sequences of earlier steps, oldest first.
        row_S: the row of every sequence of the coming step, which says how many sequences a step has.

    Returns:
        The loads of the micro-batches of the last `WINDOW` steps, int64 `[N, L, E]`, without empty ones. Sequences that
        fill no whole step count only where there is none.
    """
    per_step, num_rows = len(row_S), int(row_S.max()) + 1
    num_steps = min(max(len(counts_SLE) // per_step, 1), WINDOW)
    seen = np.zeros((num_steps * num_rows, *counts_SLE.shape[1:]), dtype=np.int64)
    last = counts_SLE[-num_steps * per_step :]
    for number, counts_LE in enumerate(last):
        step, place = divmod(number, per_step)
        seen[step * num_rows + row_S[place]] += counts_LE.astype(np.int64, copy=False)
    return seen[seen.any(axis=(1, 2))]


def seen_load(seen_NLE: NDArray[np.integer], cluster: Cluster) -> StepLoad:
    """Return micro-batches of earlier steps as a load, a row each. Their tokens come from all nodes in equal parts.

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


def _load_of_pairs(
    share_LE: NDArray[np.float64],
    tokens_S: NDArray[np.integer],
    row_S: NDArray[np.integer],
    source_rank_S: NDArray[np.integer],
    shape: tuple[int, ...],
    top_k: int,
) -> StepLoad:
    """Return the load of pairs with these tokens, in a step of `shape` rows and ranks."""
    # A whole number is at most one above the share that it rounds.
    most = int(tokens_S.max(initial=0)) * top_k * float(share_LE.max(initial=0)) + 1
    counts_SLE = np.empty((len(tokens_S), *share_LE.shape), dtype=np.min_scalar_type(int(most)))
    for pair, tokens in enumerate(tokens_S):
        counts_SLE[pair] = _whole(share_LE, int(tokens) * top_k)
    num_rows, num_ranks = shape
    return StepLoad(
        counts_SLE=counts_SLE,
        row_S=row_S.astype(np.int32),
        source_rank_S=source_rank_S.astype(np.int32),
        num_rows=num_rows,
        num_ranks=num_ranks,
    )


def _whole(share_LE: NDArray[np.float64], copies: int) -> NDArray[np.int64]:
    """Divide copies by shares into whole numbers: largest remainders are rounded up first, ties go to lower experts."""
    want_LE = copies * share_LE
    whole_LE = np.floor(want_LE).astype(np.int64)
    place_LE = np.argsort(np.argsort(whole_LE - want_LE, axis=1, kind="stable"), axis=1, kind="stable")
    whole_LE += place_LE < copies - whole_LE.sum(axis=1, keepdims=True)
    return whole_LE
