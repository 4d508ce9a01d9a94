import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.services import MODEL, count, routed_experts
from relibra.errors import Conflict, InvalidInput, RelibraError
from relibra.rollout.outbox import CountedSequence, Outbox, RoutedSequence

ROUTED = routed_experts(0, 10)
CREDIT = 1 << 20
Sent = Iterator[tuple[int, list[CountedSequence]]]


def as_sent(sequence: CountedSequence) -> CountedSequence:
    return sequence


def outbox(limit_size_bytes: int = 1 << 20, request_size_bytes: int = 1) -> Outbox:
    """Return an outbox whose requests have one sequence each."""
    return Outbox(
        num_experts=MODEL.num_experts, limit_size_bytes=limit_size_bytes, request_size_bytes=request_size_bytes
    )


def put(box: Outbox, *names: str, routed_TLK: np.ndarray = ROUTED) -> list[bool]:
    return [box.put(RoutedSequence(step=1, sequence_id=name, routed_TLK=routed_TLK)) for name in names]


def open_stream(box: Outbox) -> Sent:
    """Open a stream with credit for all sequences."""
    sent = box.send(as_sent)
    box.grant(CREDIT)
    return sent


def take(sent: Sent, number: int) -> list[tuple[int, str]]:
    return [(ordinal, names(sequences)) for _, (ordinal, sequences) in zip(range(number), sent, strict=False)]


def names(sequences: list[CountedSequence]) -> str:
    return "".join(sequence.sequence_id for sequence in sequences)


def test_sequences_are_counted_and_numbered_from_one() -> None:
    box = outbox()
    put(box, "a", "b")
    sent = open_stream(box)
    ordinal, (first,) = next(sent)
    assert (ordinal, first.sequence_id, first.num_rows) == (1, "a", 10)
    np.testing.assert_array_equal(first.counts_LE, count(ROUTED))
    assert first.counts_LE.dtype == np.uint8
    assert take(sent, 1) == [(2, "b")]


def test_L3_only_what_was_not_answered_is_sent_again() -> None:
    box = outbox()
    put(box, "a", "b", "c", "d")
    first_stream = open_stream(box)
    take(first_stream, 3)
    box.answer(2, {})
    box.end_stream()
    assert take(first_stream, 1) == []
    second_stream = open_stream(box)
    assert take(second_stream, 2) == [(1, "c"), (2, "d")]
    box.answer(2, {})
    assert box.settle_all(0).num_kept == 4


def test_a_stream_that_ended_before_its_first_request_sends_nothing() -> None:
    box = outbox()
    put(box, "a")
    late = open_stream(box)
    box.end_stream()
    current = open_stream(box)
    assert take(late, 1) == []
    assert take(current, 1) == [(1, "a")]


def test_S7_what_does_not_fit_is_refused_until_something_is_answered() -> None:
    box = outbox(limit_size_bytes=2 * ROUTED.nbytes)
    assert put(box, "a", "b", "c") == [True, True, False]
    sent = open_stream(box)
    take(sent, 2)
    box.answer(2, {})
    assert put(box, "d", "e", "f") == [True, True, False]


def test_refusals_are_told_once_with_their_reason() -> None:
    box = outbox()
    put(box, "a", "b", "c")
    put(box, "wild", routed_TLK=ROUTED + np.uint8(MODEL.num_experts))
    put(box, "d")
    sent = open_stream(box)
    assert take(sent, 4) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    box.answer(4, {2: Conflict("other counts")})
    settled = box.settle_all(0)
    assert settled.num_kept == 3
    assert [(each.sequence_id, type(each.error)) for each in settled.refused] == [
        ("wild", InvalidInput),
        ("b", Conflict),
    ]
    assert box.settle_all(0).refused == []


def test_S7_what_cannot_be_encoded_is_refused_and_the_others_go_on() -> None:
    def encode(sequence: CountedSequence) -> CountedSequence:
        if sequence.sequence_id == "bad":
            raise ValueError("no message can say that")
        return sequence

    box = outbox()
    put(box, "bad", "a", "bad", "b")
    sent = box.send(encode)
    box.grant(CREDIT)
    assert take(sent, 2) == [(1, "a"), (2, "b")]
    box.answer(2, {})
    settled = box.settle_all(0)
    assert (settled.num_kept, settled.num_waiting) == (2, 0)
    assert [str(each.error) for each in settled.refused] == [
        "it cannot be sent: ValueError: no message can say that"
    ] * 2


def test_sequences_that_wait_go_together_as_far_as_size_and_credit_allow() -> None:
    box = outbox(request_size_bytes=2 * count(ROUTED).astype(np.uint8).nbytes)
    put(box, "a")
    put(box, "wild", routed_TLK=ROUTED + np.uint8(MODEL.num_experts))
    put(box, *"bcde")
    sent = box.send(as_sent)
    box.grant(3)
    assert take(sent, 2) == [(1, "ab"), (3, "c")]
    box.answer(2, {2: Conflict("other counts")})
    box.grant(8)
    assert take(sent, 1) == [(4, "de")]
    box.end_stream()
    settled = box.settle_all(0)
    assert (settled.num_kept, settled.num_waiting) == (1, 3)
    assert [each.sequence_id for each in settled.refused] == ["wild", "b"]
    again = box.send(as_sent)
    box.grant(8)
    assert take(again, 2) == [(1, "cd"), (3, "e")]


def test_waiting_says_how_many_are_left() -> None:
    box = outbox()
    put(box, "a", "b", "c")
    take(open_stream(box), 2)
    box.answer(1, {})
    settled = box.settle_all(0.01)
    assert (settled.num_kept, settled.num_waiting) == (1, 2)


def test_a_closed_outbox_sends_what_it_has_and_takes_nothing() -> None:
    box = outbox()
    put(box, "a")
    sent = open_stream(box)
    box.close()
    assert take(sent, 2) == [(1, "a")]
    with pytest.raises(RelibraError, match="closed"):
        put(box, "b")
    assert not box.wait_for_work()


def test_a_sender_that_waits_is_woken_by_a_sequence_and_by_the_end() -> None:
    box = outbox()
    got: list[tuple[int, str]] = []
    sender = threading.Thread(target=lambda sent: got.extend(take(sent, 5)), args=[open_stream(box)])
    sender.start()
    put(box, "a")
    put(box, "b")
    box.close()
    sender.join(timeout=60)
    assert not sender.is_alive()
    assert got == [(1, "a"), (2, "b")]


@given(
    st.lists(st.sampled_from(["put", "send", "answer one", "break"]), max_size=60), st.sampled_from([1, 100, 1 << 20])
)
def test_L3_every_sequence_is_answered_exactly_once_whatever_breaks(actions: list[str], size_bytes: int) -> None:
    box = outbox(request_size_bytes=size_bytes)
    sent, on_the_way, kept, num_put = open_stream(box), [], [], 0
    for action in [*actions, "break", *["send", "answer one"] * len(actions)]:
        match action:
            case "put":
                put(box, str(num_put))
                num_put += 1
            case "send" if len(kept) + len(on_the_way) < num_put:
                ordinal, sequences = next(sent)
                on_the_way += [(ordinal + index, one.sequence_id) for index, one in enumerate(sequences)]
            case "answer one" if on_the_way:
                ordinal, name = on_the_way.pop(0)
                box.answer(ordinal, {})
                kept.append(name)
            case "break":
                box.end_stream()
                sent, on_the_way = open_stream(box), []
    assert kept == [str(number) for number in range(num_put)]
    assert box.num_unanswered() == 0


def test_S7_nothing_is_sent_beyond_the_credit_of_this_stream() -> None:
    box = outbox()
    put(box, *"abc")
    sent, got = box.send(as_sent), []
    box.grant(2)
    assert take(sent, 2) == [(1, "a"), (2, "b")]
    sender = threading.Thread(target=lambda: got.extend(take(sent, 1)))
    sender.start()
    box.answer(2, {})
    sender.join(timeout=0.05)
    assert sender.is_alive()
    box.grant(3)
    sender.join(timeout=60)
    assert got == [(3, "c")]
