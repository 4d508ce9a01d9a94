import numpy as np

from benchmarks.workload_mix import mix_workloads

_COUNTS_WLE = np.random.default_rng(0).integers(1, 100, (3, 2, 4))


def _mix(**arguments):
    defaults = {"num_sequences": 5, "tokens_per_sequence": 1000, "top_k": 2, "seed": 1}
    return mix_workloads(_COUNTS_WLE, **(defaults | arguments))


def test_every_layer_of_a_sequence_has_as_many_token_copies():
    counts_SLE = _mix()
    assert counts_SLE.shape == (5, 2, 4)
    copies_SL = counts_SLE.sum(axis=-1)
    assert (copies_SL[:, 0] == copies_SL[:, 1]).all()
    assert (copies_SL % 2 == 0).all()
    assert len(np.unique(copies_SL[:, 0])) == 5


def test_frequencies_are_those_of_the_workloads():
    counts_LE = mix_workloads(_COUNTS_WLE[:1], num_sequences=20, tokens_per_sequence=10**5, top_k=2, seed=0).sum(axis=0)
    expected_LE = _COUNTS_WLE[0] / _COUNTS_WLE[0].sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(counts_LE / counts_LE.sum(axis=-1, keepdims=True), expected_LE, atol=0.002)


def test_other_numbers_of_layers_and_experts():
    assert _mix(num_experts=8, num_layers=3).shape == (5, 3, 8)
    assert _mix(num_experts=2).shape == (5, 2, 2)


def test_equal_seeds_draw_equal_steps():
    np.testing.assert_array_equal(_mix(), _mix())
    assert (_mix() != _mix(seed=2)).any()
