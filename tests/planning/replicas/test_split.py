from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.planning import SourceShares, StepLoad
from relibra.planning.replicas.replicate import Quotas
from relibra.planning.replicas.split import split

_SIDES = slice(0, 3), slice(3, 6)


def _quotas(*lines):
    index_Q4 = np.array([line[:4] for line in lines], dtype=np.int32)
    return Quotas(index_Q4=index_Q4, tokens_Q=np.array([line[4] for line in lines]))


def _split(source_load_MLRE, quotas, home_E):
    return split(
        StepLoad.of_sources(source_load_MLRE), quotas, np.array([home_E], dtype=np.int32), len(source_load_MLRE[0, 0])
    )


def test_a_rank_with_a_copy_keeps_its_own_tokens_up_to_its_quota():
    source_load_MLRE = np.zeros((1, 1, 4, 1), dtype=np.int32)
    source_load_MLRE[0, 0, :, 0] = [50, 5, 20, 25]
    shares = _split(source_load_MLRE, _quotas((0, 0, 0, 0, 40), (0, 0, 0, 1, 40), (0, 0, 0, 3, 20)), [0])
    np.testing.assert_array_equal(shares.to_array(), [[10, 5, 20, 5], [0, 0, 0, 20]])


def test_a_home_keeps_its_own_tokens_too():
    source_load_MLRE = np.full((1, 1, 3, 1), 10, dtype=np.int32)
    shares = _split(source_load_MLRE, _quotas((0, 0, 0, 0, 10), (0, 0, 0, 2, 20)), [0])
    np.testing.assert_array_equal(shares.to_array(), [[0, 10, 10]])


def test_cells_and_experts_do_not_mix():
    source_load_MLRE = np.zeros((2, 1, 2, 2), dtype=np.int32)
    source_load_MLRE[0, 0] = [[3, 0], [0, 4]]
    source_load_MLRE[1, 0] = [[0, 1], [2, 0]]
    quotas = _quotas((0, 0, 0, 0, 3), (0, 0, 1, 0, 1), (0, 0, 1, 1, 3), (1, 0, 0, 1, 2), (1, 0, 1, 1, 1))
    shares = _split(source_load_MLRE, quotas, [0, 0])
    np.testing.assert_array_equal(shares.to_array(), [[0, 3], [0, 2], [1, 0]])
    assert [len(block_BR) for block_BR in shares.blocks()] == [1, 2]
    np.testing.assert_array_equal(shares.of_rank(1), [3, 2, 0])


def _split_sides(source_load_R, lines, crossing_Q, home):
    """Split the tokens of one expert over two nodes of three ranks."""
    quotas = replace(_quotas(*((0, 0, 0, rank, tokens) for rank, tokens in lines)), crossing_Q=np.array(crossing_Q))
    load = StepLoad.of_sources(np.array(source_load_R)[None, None, :, None])
    return split(load, quotas, np.array([[home]], dtype=np.int32), 3).to_array()


def test_replicas_get_as_many_tokens_of_other_nodes_as_the_plan_picked():
    # The home is rank 0. Node 1 has 200 tokens for it, and 60 of them go to the replica on rank 2.
    share_YR = _split_sides([50, 30, 20, 100, 60, 40], [(0, 210), (2, 90)], [0, 60], home=0)
    np.testing.assert_array_equal(share_YR, [[15, 9, 6, 30, 18, 12]])


@given(seed=st.integers(0, 10**6), mean=st.sampled_from([0.5, 4.0, 100.0]))
@settings(max_examples=40, deadline=None)
def test_shares_of_both_sides_sum_to_quotas_and_stay_within_what_each_source_has(seed, mean):
    rng = np.random.default_rng(seed)
    source_load_R = rng.poisson(mean, 6)
    local_G, crossing_G = (rng.multinomial(source_load_R[side].sum(), rng.dirichlet(np.ones(3))) for side in _SIDES)
    lines = [(rank, int(tokens)) for rank, tokens in enumerate(local_G + crossing_G) if tokens]
    crossing_Q = [int(crossing_G[rank]) if rank != 1 else 0 for rank, _ in lines]
    share_YR = _split_sides(source_load_R, lines, crossing_Q, home=1) if lines else np.zeros((0, 6))
    replicas = [(rank, tokens) for rank, tokens in lines if rank != 1]
    assert (share_YR >= 0).all()
    assert (share_YR.sum(axis=0) <= source_load_R).all()
    np.testing.assert_array_equal(share_YR.sum(axis=1), [tokens for _, tokens in replicas])
    np.testing.assert_array_equal(share_YR[:, 3:].sum(axis=1), [crossing_G[rank] for rank, _ in replicas])


def test_a_step_without_replicas_has_no_shares():
    shares = _split(np.ones((1, 1, 3, 2), dtype=np.int32), _quotas((0, 0, 0, 0, 3), (0, 0, 1, 1, 3)), [0, 1])
    assert shares.to_array().shape == (0, 3)
    assert shares.of_rank(2).shape == (0,)


def test_stored_shares_are_what_was_stored():
    share_YR = np.arange(6, dtype=np.int32).reshape(2, 3)
    np.testing.assert_array_equal(SourceShares.stored(share_YR).to_array(), share_YR)
    np.testing.assert_array_equal(SourceShares.stored(share_YR).of_rank(1), [1, 4])
