"""Even out one sum of ranks with the replicas that balance another.

A replica has tokens that cross, which come from other nodes, and local ones. If a choice of replicas balances the
copies that enter ranks, the number of its local tokens is free; if it balances tokens, which of them cross is free.
Parts of experts move between their home and one replica after another, each time until both ranks have equally much or
nothing is left to move. Each move lowers the sum of squares, whose smallest value has the smallest maximum.

M rows, E experts, R EP ranks, G ranks per node, X experts of a rank, Y replicas.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled

_NUM_SWEEPS = 8
"""How often replicas are evened out, one after the other; fewer if nothing moves any more."""


@compiled
def parts(
    whole_ME: NDArray[np.int64],
    of_ME: NDArray[np.int64],
    end_M: NDArray[np.int64],
    index_Y2: NDArray[np.int32],
    part_Y: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return what every replica has of `whole_ME`, if it has `part_Y` of `of_ME`, in whole numbers.

    Replicas that have all of the one also have all of the other.
    """
    result_Y = np.empty(len(part_Y), dtype=np.int64)
    taken_E = np.zeros(whole_ME.shape[1], dtype=np.int64)
    begin = 0
    for row in range(len(whole_ME)):
        for replica in range(begin, end_M[row]):
            taken_E[index_Y2[replica, 0]] = 0
        for replica in range(begin, end_M[row]):
            expert = index_Y2[replica, 0]
            whole, of, before = whole_ME[row, expert], of_ME[row, expert], taken_E[expert]
            after = before + part_Y[replica]
            result_Y[replica] = after * whole // of - before * whole // of
            taken_E[expert] = after
        begin = end_M[row]
    return result_Y


@compiled
def even_out(
    load_ME: NDArray[np.int64],
    crossing_ME: NDArray[np.int64],
    home_E: NDArray[np.int32],
    num_ranks: int,
    end_M: NDArray[np.int64],
    index_Y2: NDArray[np.int32],
    tokens_Y: NDArray[np.int64],
    crossing_Y: NDArray[np.int64],
    least: int,
    is_of_tokens: bool,
) -> None:
    """Change, in place, which tokens of replicas cross (`is_of_tokens`), or else how many local tokens they have."""
    num_experts = load_ME.shape[1]
    sum_R = np.empty(num_ranks, dtype=np.int64)
    local_E = np.empty(num_experts, dtype=np.int64)  # what the homes have left
    left_E = np.empty(num_experts, dtype=np.int64)
    begin = 0
    for row in range(len(load_ME)):
        end = end_M[row]
        sum_R[:] = 0
        for expert in range(num_experts):
            left_E[expert] = crossing_ME[row, expert]
            local_E[expert] = load_ME[row, expert] - left_E[expert]
            sum_R[home_E[expert]] += left_E[expert] if is_of_tokens else load_ME[row, expert]
        for replica in range(begin, end):
            expert, crossing = index_Y2[replica, 0], crossing_Y[replica]
            left_E[expert] -= crossing
            local_E[expert] -= tokens_Y[replica] - crossing
            moved = crossing if is_of_tokens else tokens_Y[replica]
            sum_R[home_E[expert]] -= moved
            sum_R[index_Y2[replica, 1]] += moved
        for _ in range(_NUM_SWEEPS):
            is_even = True
            for replica in range(begin, end):
                expert, rank = index_Y2[replica, 0], index_Y2[replica, 1]
                home, tokens, crossing = home_E[expert], tokens_Y[replica], crossing_Y[replica]
                if is_of_tokens:  # a crossing token and a local one change places
                    most, fewest = min(left_E[expert], tokens - crossing), -min(crossing, local_E[expert])
                else:
                    most, fewest = local_E[expert], max(crossing, least) - tokens
                moved = max(fewest, min(most, (sum_R[home] - sum_R[rank]) // 2))
                if moved == 0:
                    continue
                is_even = False
                local_E[expert] -= -moved if is_of_tokens else moved
                if is_of_tokens:
                    left_E[expert] -= moved
                    crossing_Y[replica] += moved
                else:
                    tokens_Y[replica] += moved
                sum_R[home] -= moved
                sum_R[rank] += moved
            if is_even:
                break
        begin = end


@compiled
def add_local(
    load_ME: NDArray[np.int64],
    crossing_ME: NDArray[np.int64],
    expert_RX: NDArray[np.int64],
    gpus_per_node: int,
    slots: int,
    end_M: NDArray[np.int64],
    index_Y2: NDArray[np.int32],
    tokens_Y: NDArray[np.int64],
    crossing_Y: NDArray[np.int64],
    least: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Add replicas of local tokens: from the slowest rank to the fastest of its node, again and again.

    A replica gets half of the difference between the two ranks, as far as an expert has local tokens, and at least
    `least`. Returns the fields of all replicas: `end_M`, `index_Y2`, `tokens_Y` and `crossing_Y`.
    """
    num_rows, num_experts = load_ME.shape
    num_ranks, per_rank = expert_RX.shape
    home_E = np.empty(num_experts, dtype=np.int64)
    for rank in range(num_ranks):
        home_E[expert_RX[rank]] = rank
    most = len(tokens_Y) + num_rows * num_ranks * slots
    all_end_M = np.empty(num_rows, dtype=np.int64)
    all_index_Y2 = np.empty((most, 2), dtype=np.int32)
    all_tokens_Y, all_crossing_Y = np.empty(most, dtype=np.int64), np.zeros(most, dtype=np.int64)
    load_R, used_R = np.empty(num_ranks, dtype=np.int64), np.empty(num_ranks, dtype=np.int64)
    local_E, is_held_ER = np.empty(num_experts, dtype=np.int64), np.empty((num_experts, num_ranks), dtype=np.bool_)
    begin, written = 0, 0
    for row in range(num_rows):
        load_R[:] = 0
        used_R[:] = 0
        is_held_ER[:] = False
        for expert in range(num_experts):
            load_R[home_E[expert]] += load_ME[row, expert]
            local_E[expert] = load_ME[row, expert] - crossing_ME[row, expert]
            is_held_ER[expert, home_E[expert]] = True
        for replica in range(begin, end_M[row]):
            expert, rank = index_Y2[replica, 0], index_Y2[replica, 1]
            all_index_Y2[written] = index_Y2[replica]
            all_tokens_Y[written], all_crossing_Y[written] = tokens_Y[replica], crossing_Y[replica]
            written += 1
            load_R[home_E[expert]] -= tokens_Y[replica]
            load_R[rank] += tokens_Y[replica]
            local_E[expert] -= tokens_Y[replica] - crossing_Y[replica]
            used_R[rank] += 1
            is_held_ER[expert, rank] = True
        begin = end_M[row]
        while True:
            slowest = np.argmax(load_R)
            first = slowest // gpus_per_node * gpus_per_node
            best, best_rank, best_tokens = -1, -1, least - 1
            for rank in range(first, first + gpus_per_node):
                half = (load_R[slowest] - load_R[rank]) // 2
                if used_R[rank] == slots or half <= best_tokens:
                    continue
                for place in range(per_rank):
                    expert = expert_RX[slowest, place]
                    tokens = min(half, local_E[expert])
                    if tokens > best_tokens and not is_held_ER[expert, rank]:
                        best, best_rank, best_tokens = expert, rank, tokens
            if best < 0:
                break
            all_index_Y2[written, 0], all_index_Y2[written, 1] = best, best_rank
            all_tokens_Y[written] = best_tokens
            written += 1
            load_R[slowest] -= best_tokens
            load_R[best_rank] += best_tokens
            local_E[best] -= best_tokens
            used_R[best_rank] += 1
            is_held_ER[best, best_rank] = True
        all_end_M[row] = written
    return all_end_M, all_index_Y2[:written], all_tokens_Y[:written], all_crossing_Y[:written]
