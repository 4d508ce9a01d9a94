from dataclasses import replace

import numpy as np
import pytest

from relibra.errors import InvalidInput
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.routing_statistics import RoutingStatistics, draw_counts
from relibra.planning.load import home_loads, imbalance
from relibra.routing import RoutingTrace, count_sequences, read_trace

_MODEL = replace(MODELS["qwen3-30b-a3b"], num_layers=6, num_experts=64, top_k=1)
_STATISTICS = RoutingStatistics(popularity_variance=0.5, domain_variance=0.2, sequence_variance=0.3)


def _trace_of(counts_SLE, domain_S):
    rows = [
        np.stack([np.repeat(np.arange(64), counts_E) for counts_E in counts_LE], axis=1)[:, :, None]
        for counts_LE in counts_SLE
    ]
    offsets = np.cumsum([0, *(len(each) for each in rows)])
    routed = np.concatenate(rows).astype(np.uint8)
    return RoutingTrace(routed_experts=routed, offsets=offsets, num_experts=64, domain=domain_S.astype(str))


def test_the_fit_recovers_the_statistics_of_drawn_routing():
    domain_S = np.arange(200) % 4
    counts_SLE = draw_counts(_STATISTICS, _MODEL, np.full(200, 400), domain_S, seed=0)
    fitted = RoutingStatistics.fit(_trace_of(counts_SLE, domain_S))
    assert fitted.popularity_variance == pytest.approx(0.5, abs=0.15)
    assert fitted.domain_variance == pytest.approx(0.2, abs=0.08)
    assert fitted.sequence_variance == pytest.approx(0.3, abs=0.04)


def test_few_tokens_are_not_taken_for_skew():
    even = RoutingStatistics(popularity_variance=0, domain_variance=0, sequence_variance=0)
    counts_SLE = draw_counts(even, _MODEL, np.full(100, 10), np.zeros(100, dtype=int), seed=0)
    fitted = RoutingStatistics.fit(_trace_of(counts_SLE, np.zeros(100)))
    assert max(fitted.popularity_variance, fitted.domain_variance, fitted.sequence_variance) < 0.02


def test_no_expert_is_chosen_twice_by_a_token():
    model = replace(_MODEL, num_experts=8, top_k=4)
    skewed = RoutingStatistics(popularity_variance=9, domain_variance=0, sequence_variance=0)
    counts_SLE = draw_counts(skewed, model, np.full(20, 10_000), np.zeros(20, dtype=int), seed=0)
    assert counts_SLE.sum(axis=-1).tolist() == [[40_000] * 6] * 20
    assert counts_SLE.max() < 10_400


def test_steps_of_one_seed_are_alike_but_for_drift():
    def popularity(step, drift):
        domain_S = np.zeros(50, dtype=int)
        counts = draw_counts(_STATISTICS, _MODEL, np.full(50, 4000), domain_S, 0, step, drift).sum(axis=0)
        return counts.ravel() / counts.sum()

    near, far = (np.corrcoef(popularity(0, drift), popularity(3, drift))[0, 1] for drift in (0.0, 0.5))
    assert far < near
    assert near > 0.95


@pytest.mark.traces
@pytest.mark.parametrize("name", ["gpt-oss-20b_mmlu", "deepseek-v2-lite_esft"])
def test_drawn_routing_is_about_as_skewed_as_the_trace_it_was_fitted_to(traces_dir, name):
    trace = read_trace(traces_dir / f"{name}.npz")
    model = replace(_MODEL, num_layers=trace.num_layers, num_experts=trace.num_experts, top_k=trace.top_k)
    domain_S = np.unique(trace.domain, return_inverse=True)[1]
    drawn_SLE = draw_counts(RoutingStatistics.fit(trace), model, np.diff(trace.offsets), domain_S, seed=0)
    home_LE = np.tile(np.arange(trace.num_experts, dtype=np.int32) * 16 // trace.num_experts, (trace.num_layers, 1))

    def skew(counts_SLE):
        load_MLE = np.stack([counts_SLE[row::16].sum(axis=0) for row in range(16)]).astype(np.int64)
        return imbalance(home_loads(load_MLE, home_LE, 16)) - 1

    assert skew(drawn_SLE) == pytest.approx(skew(count_sequences(trace)), rel=0.3)


def test_a_trace_without_tokens_is_refused():
    empty = RoutingTrace(
        routed_experts=np.zeros((0, 2, 1), dtype=np.uint8), offsets=np.zeros(4, dtype=np.int64), num_experts=8
    )
    with pytest.raises(InvalidInput, match="trace: expected a sequence with recorded tokens, got empty ones only"):
        RoutingStatistics.fit(empty)
