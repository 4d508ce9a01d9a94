import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine_payloads import ALL_MOE, DENSE_FIRST, HYBRID, all_layers, count, routes, sglang, vllm
from relibra.errors import InvalidInput, LimitExceeded, RelibraError
from relibra.routing import count_sequences, recording
from relibra.routing.left_out import LeftOut
from relibra.routing.recording import read_batch, read_responses, trace_of_router_records, trace_of_sequences


def _lines(*values: object) -> io.BytesIO:
    return io.BytesIO("\n".join(each if isinstance(each, str) else json.dumps(each) for each in values).encode())


def _sglang(rows, layers=DENSE_FIRST, **meta):
    tokens = {"prompt_tokens": 1, "completion_tokens": len(rows)}
    return {"meta_info": {"routed_experts": sglang(rows, layers)} | tokens | meta}


def test_lines_of_several_engines_become_one_trace():
    rows = [routes(seed, 5 + seed, DENSE_FIRST) for seed in range(3)]
    file = _lines(_sglang(rows[0]), "", {"choices": [{"routed_experts": vllm(each, DENSE_FIRST)} for each in rows[1:]]})
    trace = trace_of_sequences(read_responses(file, DENSE_FIRST), DENSE_FIRST)
    np.testing.assert_array_equal(count_sequences(trace), [count(each, DENSE_FIRST) for each in rows])
    assert (trace.num_experts, trace.routed_experts.dtype) == (64, np.uint8)


def test_turns_of_a_sequence_are_joined_by_a_key():
    rows = routes(0, 20, DENSE_FIRST)
    turns = [_sglang(rows[:8], trajectory="a"), _sglang(rows[:5], trajectory="b"), _sglang(rows, trajectory="a")]
    joined = read_responses(_lines(*turns), DENSE_FIRST, turns_by="trajectory")
    assert [each.num_rows for each in joined] == [20, 5]
    assert [each.num_rows for each in read_responses(_lines(*turns), DENSE_FIRST)] == [8, 5, 20]
    with pytest.raises(InvalidInput, match="line 1: group: expected to name the sequence that a turn belongs to"):
        read_responses(_lines(*turns), DENSE_FIRST, turns_by="group")


def test_S9_turns_that_do_not_tell_their_tokens_have_no_place_and_are_refused():
    rows = routes(0, 20, DENSE_FIRST)
    # A request of the second turn that leaves out 8 tokens: its 12 rows would be taken for the first 12 tokens.
    turns = [{"id": 1, "choices": [{"routed_experts": vllm(each, DENSE_FIRST)}]} for each in (rows[:8], rows[8:])]
    assert [each.is_placed for each in read_responses(_lines(*turns), DENSE_FIRST)] == [False, False]
    with pytest.raises(InvalidInput, match="line 2: num_tokens: expected the token counts of both pieces"):
        read_responses(_lines(*turns), DENSE_FIRST, turns_by="id")
    usage = [{"usage": {"prompt_tokens": 5, "completion_tokens": tokens}} for tokens in (4, 16)]
    (joined,) = read_responses(
        _lines(*(turn | each for turn, each in zip(turns, usage, strict=True))), DENSE_FIRST, turns_by="id"
    )
    np.testing.assert_array_equal(joined.counts(), count(rows, DENSE_FIRST))


def test_S7_faults_name_the_line(monkeypatch):
    good = _sglang(routes(0, 3, DENSE_FIRST))
    for bad, message in [
        ("{", "line 2: expected JSON"),
        ({}, "line 2: response: expected routed experts"),
        ("[" * 99_999, "line 2"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            read_responses(_lines(good, bad), DENSE_FIRST)
    monkeypatch.setattr(recording, "_MAX_LINE_SIZE_BYTES", 1000)
    with pytest.raises(LimitExceeded, match="line 2: more than 1000 bytes"):
        read_responses(_lines(good, "x" * 1001), DENSE_FIRST)


def test_S9_what_cannot_be_read_is_left_out_and_counted_and_the_rest_is_read():
    rows = [routes(seed, 5 + seed, DENSE_FIRST) for seed in range(4)]
    aborted = {"meta_info": {"routed_experts": None}}
    choices = [{"routed_experts": vllm(rows[1], DENSE_FIRST)}, {}, {"routed_experts": vllm(rows[2], DENSE_FIRST)}]
    file = _lines(_sglang(rows[0]), aborted, "{", {"choices": choices}, aborted, _sglang(rows[3][:0]), _sglang(rows[3]))
    left_out = LeftOut()
    found = read_responses(file, DENSE_FIRST, left_out=left_out)
    np.testing.assert_array_equal(
        [each.counts() for each in found if each.num_rows], [count(each, DENSE_FIRST) for each in rows]
    )
    assert [cause.count for cause in left_out.causes] == [2, 1, 1]
    for cause, example in zip(
        left_out.causes,
        ("line 2: meta_info.routed_experts: ", "line 3: expected JSON", "line 4: choices[1].routed_experts: "),
        strict=True,
    ):
        assert cause.example.startswith(example)


def test_batches_are_read_padded_jagged_and_single(tmp_path):
    rows = [routes(seed, 6, HYBRID) for seed in range(2)]
    padded = np.zeros((2, 9, HYBRID.num_layers, 2), dtype=np.int16)
    padded[:, 1:7] = [all_layers(each, HYBRID, "int16") for each in rows]
    mask = np.array([[0, 1, 1, 1, 1, 1, 1, 1, 0]] * 2)
    jagged = np.concatenate([each[1:8] for each in padded])
    for name, arrays, expected in [
        ("padded", {"routed_experts": padded, "attention_mask": mask}, rows),
        ("mask of booleans", {"routed_experts": padded, "attention_mask": mask == 1}, rows),
        ("jagged", {"routed_experts": jagged, "offsets": np.array([0, 7, 14])}, rows),
        ("cu_seqlens", {"rollout_routed_experts": jagged, "cu_seqlens": np.array([0, 7, 14], np.int32)}, rows),
        ("single", {"routed_experts": all_layers(rows[0], HYBRID, "int32")}, rows[:1]),
    ]:
        np.savez_compressed(tmp_path / f"{name}.npz", unrelated=np.array("x"), **arrays)
        found = read_batch(tmp_path / f"{name}.npz", HYBRID)
        np.testing.assert_array_equal([each.counts() for each in found], [count(each, HYBRID) for each in expected])


def test_S7_batches_that_are_none_are_refused(tmp_path):
    path = tmp_path / "batch.npz"
    for arrays, message in [
        ({"x": np.zeros(3)}, "expected the key routed_experts, got no arrays"),
        ({"routed_experts": np.zeros((2, 3, 3, 2), np.int16)}, "expected attention_mask or offsets beside"),
        (
            {"routed_experts": np.array([{}])},
            "routed_experts: expected a readable array without Python objects, got object",
        ),
    ]:
        np.savez(path, **arrays)
        with pytest.raises(InvalidInput, match=message):
            read_batch(path, ALL_MOE)
    whole = path.read_bytes()
    for content in (b"junk", whole[:100], whole[:60] + b"\xff" * 9 + whole[69:]):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match="expected a"):
            read_batch(path, ALL_MOE)


def test_a_router_trace_keeps_the_schedule_that_was_run():
    routed = {(step, rank): routes(10 * step + rank, 6 + rank, ALL_MOE) for step in range(3) for rank in range(4)}
    records = [
        {"rank": rank, "step": step, "layer": layer, "top_indices": rows_TLK[:, layer].tolist()}
        for (step, rank), rows_TLK in routed.items()
        for layer in range(3)
    ]
    trace = trace_of_router_records(records, ALL_MOE, num_ep_ranks=2)
    np.testing.assert_array_equal(trace.micro_batch, np.repeat([0, 1, 2], 4))
    np.testing.assert_array_equal(trace.source_rank, [0, 1, 0, 1] * 3)
    np.testing.assert_array_equal(trace.ep_group, [0, 0, 1, 1] * 3)
    np.testing.assert_array_equal(count_sequences(trace), [count(each, ALL_MOE) for each in routed.values()])
    assert trace_of_router_records(records, ALL_MOE).source_rank.max() == 3
    with pytest.raises(InvalidInput, match="ep_ranks: expected a divisor of the 4 ranks of a stage, got 3"):
        trace_of_router_records(records, ALL_MOE, num_ep_ranks=3)


def test_an_empty_recording_is_refused():
    with pytest.raises(InvalidInput, match="recording: expected at least one sequence"):
        trace_of_sequences(read_responses(_lines(), ALL_MOE), ALL_MOE)


@given(data=st.data())
@settings(max_examples=150)
def test_S7_damaged_batches_are_refused_or_harmless(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    file = io.BytesIO()
    np.savez_compressed(file, routed_experts=routes(0, 9, ALL_MOE).astype(np.int16), offsets=np.array([0, 4, 9]))
    content = bytearray(file.getvalue())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(at, len(content)))])
    try:
        found = read_batch(path, ALL_MOE)
    except RelibraError:
        return
    assert sum(each.num_rows for each in found) <= 9


@given(
    records=st.lists(
        st.fixed_dictionaries(
            {"rank": st.integers(0, 2) | st.none(), "layer": st.integers(0, 3)},
            optional={
                "top_indices": st.lists(st.lists(st.integers(-1, 9), max_size=3), max_size=3) | st.text(max_size=2),
                "block": st.sampled_from(["decoder", "mtp"]),
            },
        ),
        max_size=8,
    )
)
def test_S7_any_router_records_are_a_trace_or_a_named_error(records):
    try:
        trace = trace_of_router_records(records, ALL_MOE)
    except RelibraError:
        return
    assert trace.schedule is not None
