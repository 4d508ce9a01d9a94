"""Draw steps of any size from the expert statistics of a few real workloads.

W workloads, S sequences, L layers, E experts.
"""

import numpy as np
from numpy.typing import NDArray


def mix_workloads(
    expert_counts_WLE: NDArray[np.integer],
    *,
    num_sequences: int,
    tokens_per_sequence: int,
    top_k: int,
    seed: int,
    num_experts: int | None = None,
    num_layers: int | None = None,
) -> NDArray[np.uint32]:
    """Draw sequences that mix workloads; return their counts `[S, L, E]`.

    Every sequence has weights for the workloads (Dirichlet, 0.3: mostly one or two), a length (log-normal, sigma
    0.5, mean about 1.13 `tokens_per_sequence`) and, in every layer, multinomial counts of length x top-k token copies
    under the mixed expert frequencies. Sequences of one workload differ only by noise, unlike real sequences. So these
    steps are better suited to measure time and memory than imbalance.

    Args:
        expert_counts_WLE: how often each workload chose each expert.
        num_sequences: S.
        tokens_per_sequence: the median length of a sequence.
        top_k: the experts per token.
        seed: the seed of all draws.
        num_experts: another number of experts, by default that of the workloads. Additional experts have the
            frequencies of the next layer.
        num_layers: another number of layers; the workloads' layers repeat.
    """
    num_workloads, known_layers, known_experts = expert_counts_WLE.shape
    num_experts, num_layers = num_experts or known_experts, num_layers or known_layers
    counts_WLE = expert_counts_WLE[:, np.arange(num_layers) % known_layers]
    num_copies = -(-num_experts // known_experts)
    counts_WLE = np.concatenate([np.roll(counts_WLE, -copy, axis=1) for copy in range(num_copies)], axis=2)
    weight_WLE = counts_WLE[..., :num_experts].astype(np.float64)
    frequency_WLE = weight_WLE / weight_WLE.sum(axis=-1, keepdims=True)
    rng = np.random.default_rng(seed)
    mix_SW = rng.dirichlet(np.full(num_workloads, 0.3), num_sequences)
    num_copies_S = np.maximum(1, rng.lognormal(np.log(tokens_per_sequence), 0.5, num_sequences)).astype(int) * top_k
    counts_SLE = np.empty((num_sequences, num_layers, num_experts), dtype=np.uint32)
    for sequence in range(num_sequences):
        frequency_LE = np.tensordot(mix_SW[sequence], frequency_WLE, 1)
        counts_SLE[sequence] = rng.multinomial(num_copies_S[sequence], frequency_LE)
    return counts_SLE
