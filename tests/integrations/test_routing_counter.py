import numpy as np
import pytest

from harness.framework_batches import LAYERS, RANKS, slime_rollout_data
from relibra.errors import InvalidInput, RelibraError
from relibra.integrations import RoutingCounter
from relibra.integrations.rank_parts import count_rank
from relibra.integrations.slime import rank_batch, trainer_layout

TRAINER = trainer_layout(RANKS, data_pad_size_multiplier=4)


def test_sequences_that_were_counted_before_have_the_parts_of_others() -> None:
    data = slime_rollout_data(0)
    with RoutingCounter(LAYERS) as counter:
        # One sample was not added, and one was copied since.
        for sample in (0, 1):
            counter.add(data["rollout_routed_experts"][sample], len(data["tokens"][sample]))
        counter.wait()
        data["rollout_routed_experts"][1] = data["rollout_routed_experts"][1].clone()
        batch = rank_batch(data, LAYERS, counter=counter)
        assert [each.blocks is not None for each in batch.routings] == [True, False, False]
    expected = count_rank(rank_batch(data, LAYERS), 0, TRAINER)
    parts = count_rank(batch, 0, TRAINER)
    assert [each.counts.num_rows for each in parts] == [each.counts.num_rows for each in expected]
    for part, other in zip(parts, expected, strict=True):
        np.testing.assert_array_equal(part.counts.counts_LE, other.counts.counts_LE)


def test_a_malformed_sequence_is_refused_when_it_is_taken_by_its_name() -> None:
    data = slime_rollout_data(0)
    with RoutingCounter(LAYERS) as counter:
        counter.add(data["rollout_routed_experts"][2] + 100, 22)
        bad = data["rollout_routed_experts"][2] = data["rollout_routed_experts"][2] + 100
        counter.add(bad, 22)
        with pytest.raises(InvalidInput, match=r"rollout_routed_experts\[2\]"):
            rank_batch(data, LAYERS, counter=counter)


def test_S7_the_oldest_sequences_make_room_and_are_counted_later() -> None:
    payloads = slime_rollout_data(0)["rollout_routed_experts"]
    with RoutingCounter(LAYERS, buffer_size_bytes=payloads[1].nbytes) as counter:
        counter.add(payloads[0], 13)
        counter.add(payloads[1], 7)
        counter.wait()
        assert counter.take(payloads[0], 13, "first").blocks is None
        assert counter.take(payloads[1], 7, "second").blocks is not None
        assert counter.take(payloads[1], 7, "second").blocks is None, "it was taken before"
    with pytest.raises(RelibraError, match="the counter is closed"):
        counter.add(payloads[0], 13)


def test_rows_that_do_not_fit_the_tokens_of_now_are_decoded_again() -> None:
    payload = slime_rollout_data(0)["rollout_routed_experts"][0]
    with RoutingCounter(LAYERS) as counter:
        counter.add(payload, 13)
        assert counter.take(payload, 14, "sample").num_missing == 2
