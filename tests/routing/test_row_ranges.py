import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.row_table import row_table
from relibra.errors import InvalidInput
from relibra.routing.token_layout import ParallelLayout, TokenPacking, check_dealt

PACKINGS = {
    "verl": TokenPacking.verl,
    "slime": lambda layout: TokenPacking.slime(layout, pad_multiplier=4),
    "padded": TokenPacking.padded,
}


@st.composite
def steps(draw):
    data, context, tensor = draw(st.sampled_from([(1, 1, 1), (2, 1, 1), (2, 2, 1), (1, 2, 2), (2, 1, 2), (2, 4, 2)]))
    num_ranks = data * context * tensor
    expert = draw(st.sampled_from([each for each in (1, 2, 4, 8) if num_ranks % each == 0]))
    layout = ParallelLayout(data=data, context=context, tensor=tensor, expert=expert)
    lengths = draw(st.lists(st.integers(1, 40), min_size=data, max_size=12))
    num_micro_batches = draw(st.integers(1, 3))
    dealt = [[[] for _ in range(num_micro_batches)] for _ in range(data)]
    for sequence in draw(st.permutations(range(len(lengths)))):
        dealt[draw(st.integers(0, data - 1))][draw(st.integers(0, num_micro_batches - 1))].append(sequence)
    return dealt, np.array(lengths), layout


@given(step=steps(), packing=st.sampled_from(sorted(PACKINGS)))
def test_every_token_starts_from_exactly_one_rank_of_its_data_rank(step, packing):
    micro_batches, length_S, layout = step
    laid = row_table(micro_batches, length_S, layout, PACKINGS[packing](layout))
    is_token_N = laid.sequence_N >= 0
    tokens = sorted(zip(laid.sequence_N[is_token_N].tolist(), laid.position_N[is_token_N].tolist(), strict=True))
    assert tokens == [(sequence, token) for sequence, length in enumerate(length_S) for token in range(length)]
    where = {
        sequence: (data_rank, micro_batch)
        for data_rank, of_rank in enumerate(micro_batches)
        for micro_batch, sequences in enumerate(of_rank)
        for sequence in sequences
    }
    rank_N = laid.ep_group_N * layout.expert + laid.source_rank_N
    for sequence, rank, micro_batch in zip(
        laid.sequence_N[is_token_N], rank_N[is_token_N], laid.micro_batch_N[is_token_N], strict=True
    ):
        assert (rank // (layout.context * layout.tensor), micro_batch) == where[int(sequence)]
    assert (laid.source_rank_N < layout.expert).all()
    assert (laid.ep_group_N < layout.num_ep_groups).all()
    # Megatron needs equally many rows on all ranks of a data rank.
    for data_rank in range(layout.data):
        for micro_batch in range(len(micro_batches[0])):
            here_N = (laid.micro_batch_N == micro_batch) & (rank_N // (layout.context * layout.tensor) == data_rank)
            rows = np.bincount(
                rank_N[here_N] % (layout.context * layout.tensor), minlength=layout.context * layout.tensor
            )
            assert len(set(rows.tolist())) == 1


def _ranks(laid, sequence):
    here_N = laid.sequence_N == sequence
    return laid.source_rank_N[here_N][np.argsort(laid.position_N[here_N])].tolist()


def test_context_parallel_ranks_have_a_front_and_a_back_chunk():
    layout = ParallelLayout(data=1, context=2, expert=2)
    laid = row_table([[[0, 1]]], np.array([8, 6]), layout, TokenPacking.verl(layout))
    assert _ranks(laid, 0) == [0, 0, 1, 1, 1, 1, 0, 0]
    assert _ranks(laid, 1) == [0, 0, 1, 1, 1, 1]  # two rows of padding at the end of rank 0
    padding = [(0, 0), (1, 0)]
    is_padding_N = laid.sequence_N < 0
    assert sorted(zip(laid.position_N[is_padding_N], laid.source_rank_N[is_padding_N], strict=True)) == padding
    contiguous = ParallelLayout(data=1, context=2, expert=2, zigzag=False)
    assert _ranks(row_table([[[0]]], np.array([8]), contiguous, TokenPacking.verl(contiguous)), 0) == [0] * 4 + [1] * 4


def test_sequence_parallel_ranks_cut_what_is_packed_not_each_sequence():
    layout = ParallelLayout(data=1, tensor=2, expert=2)
    lengths = np.array([6, 2])
    packed = row_table([[[0, 1]]], lengths, layout, TokenPacking.verl(layout))
    assert (_ranks(packed, 0), _ranks(packed, 1)) == ([0, 0, 0, 0, 1, 1], [1, 1])
    padded = row_table([[[0, 1]]], lengths, layout, TokenPacking.padded(layout))
    assert (_ranks(padded, 0), _ranks(padded, 1)) == ([0, 0, 0, 1, 1, 1], [0, 0])


def test_slime_pads_each_rank_behind_its_sequences():
    layout = ParallelLayout(data=1, tensor=2, expert=2)
    laid = row_table([[[0]]], np.array([5]), layout, TokenPacking.slime(layout, pad_multiplier=4))
    assert _ranks(laid, 0) == [0, 0, 0, 0, 1]
    assert sorted(laid.position_N[laid.sequence_N < 0]) == [0, 1, 2]


def test_expert_groups_cut_the_ranks_anew():
    layout = ParallelLayout(data=4, tensor=2, expert=2, expert_tensor=2)
    laid = row_table([[[each]] for each in range(4)], np.full(4, 2), layout, TokenPacking.verl(layout))
    assert layout.num_ep_groups == 2
    assert laid.ep_group_N[np.argsort(laid.sequence_N)].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert laid.source_rank_N[np.argsort(laid.sequence_N, kind="stable")].tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("micro_batches", "message"),
    [
        ([[[0, 1]]], "expected a list for each of 2 data ranks, got 1"),
        ([[[0]], [[1], []]], "expected the same number for every data rank"),
        ([[[0]], [[0]]], "expected each of sequences 0 to 1 once"),
        ([[[0]], [[2]]], "expected each of sequences 0 to 1 once"),
        ([[[0]], [[]]], "expected each of sequences 0 to 1 once, got 1 entries"),
    ],
)
def test_micro_batches_that_lose_a_sequence_are_refused(micro_batches, message):
    with pytest.raises(InvalidInput, match=f"micro_batches: {message}"):
        check_dealt(micro_batches, num_sequences=2, num_data_ranks=2)


def test_layouts_and_packings_that_cannot_be_are_refused():
    with pytest.raises(InvalidInput, match=r"layout\.expert: expected expert x expert_tensor to divide the 4 ranks"):
        ParallelLayout(data=4, expert=3)
    with pytest.raises(InvalidInput, match=r"layout\.tensor: expected at least 1"):
        ParallelLayout(data=4, expert=2, tensor=0)
    layout = ParallelLayout(data=1, context=2, tensor=2, expert=2)
    for packing, message in [
        (
            TokenPacking(sequence_multiple=2, rank_multiple=1),
            "sequence_multiple: expected a multiple of 4 chunks, got 2",
        ),
        (TokenPacking(sequence_multiple=4, rank_multiple=3), "rows that 2 tensor-parallel ranks can share, got 3 rows"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            row_table([[[0]]], np.array([3]), layout, packing)


@pytest.mark.parametrize(
    "layout",
    [
        ParallelLayout(data=4, expert=4),
        ParallelLayout(data=4, context=2, tensor=2, expert=8),
        ParallelLayout(data=2, context=2, tensor=4, expert=4, expert_tensor=2),
    ],
)
def test_ranks_and_expert_groups_are_those_that_megatron_makes(layout):
    parallel_state = pytest.importorskip("megatron.core.parallel_state")
    order = "tp-cp-ep-dp-pp"
    plain = parallel_state.RankGenerator(tp=layout.tensor, ep=1, dp=layout.data, pp=1, cp=layout.context, order=order)
    expert = parallel_state.RankGenerator(
        tp=layout.expert_tensor, ep=layout.expert, dp=layout.num_ep_groups, pp=1, cp=1, order=order
    )
    # Each data rank gets one sequence of twice as many tokens as it has ranks, so every rank has tokens.
    length = 2 * layout.context * layout.tensor
    laid = row_table(
        [[[each]] for each in range(layout.data)], np.full(layout.data, length), layout, TokenPacking.verl(layout)
    )
    for data_rank, ranks in enumerate(plain.get_ranks("tp-cp")):
        expected = {
            (group, ep_ranks.index(rank))
            for rank in ranks
            for expert_tensor in range(layout.expert_tensor)
            for group, ep_ranks in enumerate(expert.get_ranks("ep")[expert_tensor :: layout.expert_tensor])
            if rank in ep_ranks
        }
        here_N = laid.sequence_N == data_rank
        assert set(zip(laid.ep_group_N[here_N], laid.source_rank_N[here_N], strict=True)) == expected


@pytest.mark.parametrize("context", [2, 4])
def test_context_parallel_ranks_have_the_tokens_that_megatron_gives_them(context, monkeypatch):
    torch = pytest.importorskip("torch")
    megatron_utils = pytest.importorskip("megatron.core.utils")
    layout = ParallelLayout(data=1, context=context, expert=context)
    length = 4 * context
    laid = row_table([[[0]]], np.array([length]), layout, TokenPacking.verl(layout))
    # megatron-core 0.19 asks torch and not its own state, and splits otherwise for micro-batches of hybrid sizes.
    is_of_0_19 = "is_hybrid_cp" in inspect.signature(megatron_utils.get_batch_on_this_cp_rank).parameters
    hybrid = {"is_hybrid_cp": False} if is_of_0_19 else {}
    monkeypatch.setattr(megatron_utils.parallel_state, "get_context_parallel_world_size", lambda: context)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: context)
    for rank in range(context):
        monkeypatch.setattr(megatron_utils.parallel_state, "get_context_parallel_rank", lambda rank=rank: rank)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda group, rank=rank: rank)
        batch = megatron_utils.get_batch_on_this_cp_rank({"tokens": torch.arange(length)[None]}, **hybrid)
        assert sorted(laid.position_N[laid.source_rank_N == rank]) == batch["tokens"][0].tolist()
