import numpy as np
import pytest

from harness.framework_batches import LAYERS, Replayed, prime_micro_batches, sequence_rows, trained_counts, with_last
from relibra.errors import InvalidInput
from relibra.integrations.prime_rl import rank_batch, trainer_layout
from relibra.routing.token_layout import ParallelLayout

RANKS = ParallelLayout(data=2, expert=2)


def test_packed_sequences_are_taken_apart_and_zeros_go_to_expert_zero() -> None:
    replayed = Replayed(RANKS)
    zeros = np.zeros((1, 2, 2), int)
    for index in range(2):
        rows = np.concatenate([with_last(each, zeros) for each in sequence_rows(index)])
        padded = np.concatenate([rows, np.repeat(zeros, -len(rows) % 5, axis=0)])
        replayed.add(0, index, 0, 0, padded)
    batch = rank_batch(prime_micro_batches(), LAYERS)
    assert batch.micro_batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    planned_MRLE = trained_counts(batch, 0, trainer_layout(RANKS, pad_to_multiple_of=5))
    np.testing.assert_array_equal(planned_MRLE, replayed.counts_MRLE)


@pytest.mark.parametrize("dtype", ["int16", "int32"])
def test_wider_and_signed_ids_are_the_same_ids(dtype: str) -> None:
    narrow, wide = prime_micro_batches(), prime_micro_batches()
    for each in wide:
        each.routed_experts.data = np.frombuffer(each.routed_experts.data, np.uint8).astype(dtype).tobytes()
        each.routed_experts.dtype = dtype
    counts = [trained_counts(rank_batch(each, LAYERS), 0, trainer_layout(RANKS, 5)) for each in (narrow, wide)]
    np.testing.assert_array_equal(*counts)


def test_a_micro_batch_without_routed_experts_is_refused() -> None:
    micro_batches = prime_micro_batches()
    micro_batches[1].routed_experts = None
    with pytest.raises(
        InvalidInput, match=r"micro_batches\[1\]\.routed_experts: expected uint8 or uint16 or int16 or int32, got None"
    ):
        rank_batch(micro_batches, LAYERS)
