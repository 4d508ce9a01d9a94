import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.errors import InvalidInput
from relibra.routing import RoutingTrace, count_routed_experts, count_sequences


@given(
    seed=st.integers(0, 10**6),
    num_tokens=st.integers(0, 40),
    num_layers=st.integers(1, 4),
    top_k=st.integers(1, 4),
    dtype=st.sampled_from([np.uint8, np.uint16, np.int32, np.int64, np.uint64]),
)
@settings(max_examples=60, deadline=None)
def test_counts_are_those_of_a_loop(seed, num_tokens, num_layers, top_k, dtype):
    ids_TLK = np.random.default_rng(seed).integers(0, 9, (num_tokens, num_layers, top_k)).astype(dtype)
    expected_LE = np.zeros((num_layers, 9), dtype=np.uint32)
    for token_LK in ids_TLK:
        for layer, chosen_K in enumerate(token_LK):
            for expert in chosen_K:
                expected_LE[layer, expert] += 1
    counts_LE = count_routed_experts(ids_TLK, 9)
    assert counts_LE.dtype == np.uint32
    np.testing.assert_array_equal(counts_LE, expected_LE)


def test_a_long_sequence_is_counted_in_full():
    ids_TLK = np.random.default_rng(0).integers(0, 256, (10_000, 3, 8)).astype(np.uint8)
    counts_LE = count_routed_experts(ids_TLK, 256)
    assert (counts_LE.sum(axis=1) == 80_000).all()
    np.testing.assert_array_equal(counts_LE[1], np.bincount(ids_TLK[:, 1].ravel(), minlength=256))


def test_torch_tensors_count_the_same():
    torch = pytest.importorskip("torch")
    ids_TLK = np.random.default_rng(0).integers(0, 8, (20, 2, 2))
    counts_LE = count_routed_experts(torch.from_numpy(ids_TLK), 8)
    np.testing.assert_array_equal(counts_LE, count_routed_experts(ids_TLK, 8))
    with pytest.raises(InvalidInput, match="routed_experts: expected integers"):
        count_routed_experts(torch.from_numpy(ids_TLK).bfloat16(), 8)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.zeros((2, 2), np.uint8), r"routed_experts: expected integers \[T, L, K\], got uint8 \(2, 2\)"),
        (np.zeros((2, 2, 2)), r"routed_experts: expected integers \[T, L, K\], got float64"),
        (np.zeros((2, 2, 2), bool), "got bool"),
        (np.full((1, 1, 1), 8), "routed_experts: expected expert ids 0 to 7, got 8"),
        (np.full((1, 1, 1), -1), r"routed_experts: expected expert ids 0 to 7, got -1 \(cut padding off first\)"),
    ],
)
def test_S7_other_input_is_refused_by_name(ids, message):
    with pytest.raises(InvalidInput, match=message):
        count_routed_experts(ids, 8)


def test_sequences_of_a_trace_are_counted_apart():
    trace = RoutingTrace(
        routed_experts=np.array([[[0, 1]], [[2, 1]], [[1, 2]]], dtype=np.uint8),
        offsets=np.array([0, 1, 1, 3]),
        num_experts=3,
    )
    np.testing.assert_array_equal(count_sequences(trace), [[[1, 1, 0]], [[0, 0, 0]], [[0, 2, 2]]])


def test_rollout_workers_import_numpy_and_nothing_else():
    code = "import sys, relibra.routing; print({'torch', 'numba', 'grpc', 'scipy', 'typer'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
