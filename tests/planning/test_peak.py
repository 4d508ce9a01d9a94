"""The hottest rank and its memory. m micro-batches, L layers, R ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.planning.memory import ActivationMemory
from relibra.planning.peak import Peak, StepMemory, find_peak
from relibra.planning.pipeline import passes_of

MEMORIES = [
    ActivationMemory(kept_bytes=100, working_bytes=7),
    ActivationMemory(kept_bytes=0, working_bytes=7),
    ActivationMemory(kept_bytes=100, working_bytes=7, num_stages=2),
    ActivationMemory(kept_bytes=100, working_bytes=7, num_stages=2, chunk_layers=(0, 1, 2, 1)),
]


def held_by(loads_mLR, memory, stage, rank):
    """Return the most bytes and the most kept copies of a rank, by going through its passes one by one."""
    num_micro_batches, num_layers, _ = loads_mLR.shape
    chunks = memory.layers_of(stage, num_layers)
    passes = passes_of(stage, memory.num_stages, len(chunks), num_micro_batches)
    kept = most_bytes = most_kept = 0
    for m, chunk, is_forward in zip(passes.micro_batch_T, passes.chunk_T, passes.is_forward_T, strict=True):
        loads = loads_mLR[m, chunks[chunk], rank]
        if not len(loads):
            continue
        kept += loads.sum() if is_forward else 0
        most_kept = max(most_kept, kept)
        most_bytes = max(most_bytes, kept * memory.kept_bytes + loads.max() * memory.working_bytes)
        kept -= 0 if is_forward else loads.sum()
    assert kept == 0
    return most_bytes, most_kept


@pytest.mark.parametrize("memory", MEMORIES, ids=["one stage", "recomputed", "two stages", "interleaved"])
@given(seed=st.integers(0, 10_000), num_micro_batches=st.integers(1, 6), num_ep_groups=st.integers(1, 2))
@settings(max_examples=30, deadline=None)
def test_M1_the_peak_is_that_of_going_through_all_passes(memory, seed, num_micro_batches, num_ep_groups):
    loads_MLR = np.random.default_rng(seed).integers(0, 50, (num_ep_groups * num_micro_batches, 4, 3))
    peak = find_peak(loads_MLR, memory, num_ep_groups)
    loads_GmLR = loads_MLR.reshape(num_ep_groups, num_micro_batches, 4, 3)
    of_rank = {
        (group, stage, rank): held_by(loads_GmLR[group], memory, stage, rank)[0]
        for group in range(num_ep_groups)
        for stage in range(memory.num_stages)
        for rank in range(3)
    }
    assert peak.size_bytes == max(of_rank.values()) == of_rank[peak.ep_group, peak.stage, peak.rank]
    assert 1 <= peak.cum_overload <= peak.overload


def test_the_factors_are_those_of_megatron():
    # Two micro-batches of one layer on two ranks, and the second stage of two keeps one of them at a time.
    loads_MLR = np.array([[[30, 10], [10, 10]], [[10, 30], [10, 10]]])
    alone = find_peak(loads_MLR, ActivationMemory(num_stages=2, chunk_layers=(1, 1)))
    assert alone.overload == 1.5
    assert alone.cum_overload == 1.0  # the first stage keeps both: 40 copies on either rank
    assert alone.size_bytes is None
    assert find_peak(loads_MLR, ActivationMemory()).cum_overload == pytest.approx(40 / 30)


def test_an_empty_step_has_no_peak():
    assert find_peak(np.zeros((2, 3, 4), dtype=np.int64), MEMORIES[0]) == Peak(size_bytes=0)


def test_M1_an_excess_names_rank_micro_batch_and_what_fits():
    peak = Peak(size_bytes=3 << 30, rank=5, micro_batch=2)
    memory = StepMemory(before=peak, after=peak, budget_bytes=2 << 30)
    assert memory.excess == (
        "activations of experts need 3.00 GiB on EP rank 5 of EP group 0, pipeline stage 0, in micro-batch 2, and the "
        "budget is 2.00 GiB: micro-batches with 66 % of these tokens would fit"
    )
    assert StepMemory(before=peak, after=peak).excess == ""
    assert StepMemory(before=peak, after=peak, budget_bytes=3 << 30).excess == ""
