"""Draw routing like that of real rollouts, for models without published routing.

Expert popularity is a product of three gamma-distributed factors: one that all sequences share in a layer, one of the
sequence's domain, and one of the sequence itself. The variances of the factors are fitted to a trace by moments of its
counts, without the noise of small token counts. From step to step, popularity drifts.

S sequences, L layers, E experts, D domains.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.evaluation.model_shape import ModelShape
from relibra.routing.counts import count_sequences
from relibra.routing.trace import RoutingTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingStatistics:
    """The variances of three factors with mean 1, whose product is an expert's popularity relative to the mean."""

    popularity_variance: float
    domain_variance: float
    sequence_variance: float

    @classmethod
    def fit(cls, trace: RoutingTrace) -> "RoutingStatistics":
        """Return the statistics of a trace; a trace without domains counts as one domain.

        For a group of sequences, take the expected square of an expert's share and divide it by the square of the mean
        share 1/E. The result is the product of (1 + variance) over the factors that the group has in common. Pairs of
        different tokens estimate it without bias: pairs from all sequences, from one domain, and from one sequence.

        Raises:
            InvalidInput: no sequence has a token.
        """
        if not len(trace.routed_experts):
            raise InvalidInput.of("trace", expected="a sequence with recorded tokens", got="empty ones only")
        domain_S = np.zeros(trace.num_sequences, dtype=np.int64)
        if trace.domain is not None:
            domain_S = np.unique(trace.domain, return_inverse=True)[1]
        return cls.of_counts(count_sequences(trace), domain_S, trace.top_k)

    @classmethod
    def of_counts(cls, counts_SLE: NDArray[np.integer], domain_S: NDArray[np.int64], top_k: int) -> "RoutingStatistics":
        """Return the statistics of token copies `[S, L, E]` of sequences in domains from 0 on; see `fit`."""
        by_domain_DLE = np.stack([counts_SLE[domain_S == domain].sum(axis=0) for domain in range(domain_S.max() + 1)])
        common = _mean_square(counts_SLE.sum(axis=0, keepdims=True), top_k)
        in_domain = max(_mean_square(by_domain_DLE, top_k), common)
        in_sequence = max(_mean_square(counts_SLE, top_k), in_domain)
        return cls(
            popularity_variance=max(common, 1.0) - 1,
            domain_variance=in_domain / common - 1,
            sequence_variance=in_sequence / in_domain - 1,
        )


def _mean_square(counts_XLE: NDArray[np.integer], top_k: int) -> float:
    """Estimate E * sum_e share_e**2 from pairs of different tokens; average over layers, and over groups by size."""
    counts_XLE = counts_XLE.astype(np.float64)
    total_XL = counts_XLE.sum(axis=-1)
    # The copies of one token go to different experts. Such pairs never agree, so they say nothing.
    pairs_XL = (counts_XLE * (counts_XLE - 1)).sum(axis=-1) / np.maximum(total_XL * (total_XL - top_k), 1)
    return float(np.average(pairs_XL, weights=total_XL) * counts_XLE.shape[-1])


def draw_counts(
    statistics: RoutingStatistics,
    model: ModelShape,
    length_S: NDArray[np.integer],
    domain_S: NDArray[np.integer],
    seed: int,
    step: int = 0,
    drift_sigma: float = 0.0,
) -> NDArray[np.uint32]:
    """Draw the token copies `[S, L, E]` of sequences with the given lengths, in tokens, and domains.

    Equal seeds give experts the same popularity, also within each domain. `step` changes the sequences, and popularity
    takes that many steps of a random walk with standard deviation `drift_sigma`.
    """
    shape = (model.num_layers, model.num_experts)
    common, walk, own = (np.random.default_rng([seed, *part]) for part in ((0,), (1,), (2, step)))
    popularity_LE = _factor(common, statistics.popularity_variance, shape)
    domain_DLE = _factor(common, statistics.domain_variance, (int(domain_S.max()) + 1, *shape))
    for _ in range(step):
        popularity_LE = popularity_LE * np.exp(drift_sigma * walk.standard_normal(shape))
    counts_SLE = np.empty((len(length_S), *shape), dtype=np.uint32)
    for sequence, (length, domain) in enumerate(zip(length_S, domain_S, strict=True)):
        share_LE = popularity_LE * domain_DLE[domain] * _factor(own, statistics.sequence_variance, shape)
        counts_SLE[sequence] = own.multinomial(int(length) * model.top_k, _limit(share_LE, model.top_k))
    return counts_SLE


def _factor(rng: np.random.Generator, variance: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return rng.gamma(1 / variance, variance, shape) if variance > 0 else np.ones(shape)


def _limit(share_LE: NDArray[np.float64], top_k: int) -> NDArray[np.float64]:
    """Return shares of token copies, at most 1/K for each expert, because a token chooses an expert at most once."""
    is_full_LE = np.zeros(share_LE.shape, dtype=np.bool_)
    for _ in range(top_k):  # the excess goes to the other experts, and some of them may then exceed 1/K
        rest_LE = np.where(is_full_LE, 0.0, share_LE)
        left_L1 = 1 - is_full_LE.sum(axis=-1, keepdims=True) / top_k
        share_LE = np.where(is_full_LE, 1 / top_k, rest_LE * left_L1 / rest_LE.sum(axis=-1, keepdims=True))
        has_too_much_LE = share_LE >= 1 / top_k
        if (has_too_much_LE == is_full_LE).all():
            break
        is_full_LE = has_too_much_LE
    return share_LE
