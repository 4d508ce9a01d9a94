"""The routing that `measure` replays: skewed, or even over all experts.

M micro-batches, R ranks, T tokens of a rank in a micro-batch, L MoE layers, E experts, K top-k.
"""

import numpy as np
from numpy.typing import NDArray

from benchmarks import results
from relibra.planning import Model, Schedule
from relibra.routing import read_trace

RECORDED = results.TRACES / "gpt-oss-20b_mmlu.npz"


def skewed(
    model: Model, num_micro_batches: int, num_ranks: int, num_tokens: int, step: int, sigma: float
) -> NDArray[np.int64]:
    """Draw routing `[M, R, L, T, K]`; in each micro-batch the popularity of experts is log-normal with `sigma`."""
    rng = np.random.default_rng([7, step])
    shape = (num_micro_batches, 1, model.num_layers, 1, model.num_experts)
    likely = sigma * rng.standard_normal(shape)
    gumbel = rng.gumbel(size=(num_micro_batches, num_ranks, model.num_layers, num_tokens, model.num_experts))
    return np.argsort(-(likely + gumbel), axis=-1)[..., : model.top_k]


def recorded(model: Model, num_micro_batches: int, num_ranks: int, num_tokens: int, step: int) -> NDArray[np.int64]:
    """Return routing `[M, R, L, T, K]` as recorded from gpt-oss-20b: a part of the recording for each step, in order.

    Its layers are those of the 24 in which plain expert parallelism on these ranks is most imbalanced over the whole
    recording. Experts keep their numbers.
    """
    routed_TLK = read_trace(RECORDED).routed_experts
    share_LR = [
        np.bincount(routed_TK.ravel(), minlength=model.num_experts).reshape(num_ranks, -1).sum(axis=1)
        for routed_TK in routed_TLK.swapaxes(0, 1)
    ]
    layer_L = np.sort(np.max(share_LR, axis=1).argsort()[-model.num_layers :])
    size = num_micro_batches * num_ranks * num_tokens
    index_T = np.arange(step * size, (step + 1) * size) % len(routed_TLK)
    shape = (num_micro_batches, num_ranks, num_tokens, model.num_layers, model.top_k)
    return routed_TLK[index_T][:, layer_L].reshape(shape).swapaxes(2, 3).astype(np.int64)


def even(model: Model, num_micro_batches: int, num_ranks: int, num_tokens: int) -> NDArray[np.int64]:
    """Return routing `[M, R, L, T, K]` with equally many tokens for every expert: forced balance.

    Which tokens go to an expert is random, as in skewed routing. If tokens took the experts in turn, those of an expert
    would lie at regular distances in memory, and CPUs read such tokens faster.
    """
    rng = np.random.default_rng(11)
    turn_TK = np.arange(num_tokens * model.top_k).reshape(num_tokens, model.top_k) % model.num_experts
    cells = num_micro_batches * num_ranks * model.num_layers
    routed_XTK = np.stack([rng.permutation(model.num_experts)[rng.permutation(turn_TK)] for _ in range(cells)])
    return routed_XTK.reshape(num_micro_batches, num_ranks, model.num_layers, *turn_TK.shape)


def counts_SLE(routed_MRLTK: NDArray[np.int64], num_experts: int) -> NDArray[np.uint32]:
    """Return token copies `[S, L, E]`; the tokens of a rank in a micro-batch count as one sequence of `schedule`."""
    num_sequences = routed_MRLTK.shape[0] * routed_MRLTK.shape[1]
    routed_SLX = routed_MRLTK.reshape(num_sequences, routed_MRLTK.shape[2], -1)
    count_LE = [[np.bincount(routed_X, minlength=num_experts) for routed_X in routed_LX] for routed_LX in routed_SLX]
    return np.array(count_LE, dtype=np.uint32)


def schedule(num_micro_batches: int, num_ranks: int) -> Schedule:
    """Return the schedule that leaves the sequences of `counts_SLE` on their ranks."""
    index_S = np.arange(num_micro_batches * num_ranks, dtype=np.int32)
    return Schedule(
        micro_batch_S=index_S // np.int32(num_ranks),
        source_rank_S=index_S % np.int32(num_ranks),
        ep_group_S=np.zeros_like(index_S),
    )
