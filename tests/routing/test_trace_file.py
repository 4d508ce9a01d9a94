import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.errors import InvalidTrace, LimitExceeded
from relibra.routing import RoutingTrace, read_trace, write_trace

_FIELDS = ("routed_experts", "offsets", "domain", "micro_batch", "source_rank", "ep_group")


def _trace(with_schedule=True, dtype=np.uint8):
    rng = np.random.default_rng(0)
    schedule = {key: rng.integers(0, 4, 5).astype(np.int32) for key in ("micro_batch", "source_rank", "ep_group")}
    return RoutingTrace(
        routed_experts=rng.integers(0, 40, (50, 3, 4)).astype(dtype),
        offsets=np.array([0, 10, 10, 25, 30, 50]),
        num_experts=40,
        domain=np.array(["math", "code", "math", "chat", "code"]),
        **(schedule if with_schedule else {}),
    )


@pytest.mark.parametrize("with_schedule", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_trace_survives_its_file(tmp_path, with_schedule, dtype):
    trace = _trace(with_schedule, dtype)
    write_trace(tmp_path / "trace.npz", trace)
    back = read_trace(tmp_path / "trace.npz")
    assert back.num_experts == 40
    for field in _FIELDS:
        before, after = getattr(trace, field), getattr(back, field)
        if before is None:
            assert after is None
        else:
            assert before.dtype == after.dtype
            np.testing.assert_array_equal(before, after)


def test_the_file_has_the_keys_and_types_others_read(tmp_path):
    write_trace(tmp_path / "trace.npz", _trace(with_schedule=False))
    with np.load(tmp_path / "trace.npz") as file:
        found = {key: (str(file[key].dtype), file[key].ndim) for key in file}
    assert found == {
        "routed_experts": ("uint8", 3),
        "offsets": ("int64", 1),
        "num_experts": ("int64", 0),
        "domain": ("<U4", 1),
    }


def test_other_keys_are_ignored(tmp_path):
    trace = _trace(with_schedule=False)
    np.savez(tmp_path / "t.npz", routed_experts=trace.routed_experts, offsets=trace.offsets, num_experts=40, model="x")
    assert read_trace(tmp_path / "t.npz").num_sequences == 5


@pytest.mark.parametrize("key", ["routed_experts", "offsets", "num_experts"])
def test_a_missing_key_is_named(tmp_path, key):
    trace = _trace()
    arrays = {"routed_experts": trace.routed_experts, "offsets": trace.offsets, "num_experts": 40}
    del arrays[key]
    np.savez(tmp_path / "t.npz", **arrays)
    kept = ", ".join(each for each in arrays)
    with pytest.raises(
        InvalidTrace, match=rf"t\.npz: expected a routing trace with the keys .*{key}.*, got only {kept};"
    ):
        read_trace(tmp_path / "t.npz")


@pytest.mark.parametrize("value", [np.array([40]), np.array(40.0), np.array("40")])
def test_num_experts_must_be_one_integer(tmp_path, value):
    trace = _trace()
    np.savez(tmp_path / "t.npz", routed_experts=trace.routed_experts, offsets=trace.offsets, num_experts=value)
    with pytest.raises(InvalidTrace, match="num_experts: expected one integer"):
        read_trace(tmp_path / "t.npz")


def test_python_objects_are_refused(tmp_path):
    trace = _trace()
    domain = np.array([{}] * 5, dtype=object)
    np.savez(
        tmp_path / "t.npz", routed_experts=trace.routed_experts, offsets=trace.offsets, num_experts=40, domain=domain
    )
    with pytest.raises(InvalidTrace, match="domain: expected a readable array without Python objects"):
        read_trace(tmp_path / "t.npz")


def test_no_file_a_folder_an_array_and_junk_are_refused(tmp_path):
    np.save(tmp_path / "one.npy", np.arange(3))
    (tmp_path / "junk").write_bytes(b"junk")
    (tmp_path / "empty").touch()
    (tmp_path / "README.md").write_text("# relibra\n\nBalances experts.\n")
    np.savez(tmp_path / "other.npz", weights=np.arange(3))
    for name, message in [
        ("absent", "absent: expected a routing trace file .*got no such file"),
        (".", "expected a complete .npz file, got Is a directory"),
        ("one.npy", "one.npy: expected a .npz file with several keys, got a single array"),
        ("junk", "junk: expected a complete .npz file, got a file that begins with 'junk'"),
        ("README.md", "README.md: expected a complete .npz file, got a file that begins with '# relibra'"),
        ("empty", "empty: expected a complete .npz file, got an empty file"),
        ("other.npz", "other.npz: expected a routing trace with the keys .*, got none of them"),
    ]:
        with pytest.raises(InvalidTrace, match=f"{message}.*; `relibra record` makes a trace"):
            read_trace(tmp_path / name)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_S7_damaged_and_truncated_files_are_refused_or_harmless(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    trace = _trace()
    write_trace(folder / "whole.npz", trace)
    content = bytearray((folder / "whole.npz").read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:at]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    (folder / "damaged.npz").write_bytes(content)
    try:
        back = read_trace(folder / "damaged.npz")
    except (InvalidTrace, LimitExceeded):  # a damaged size may be one that is not unpacked
        return
    np.testing.assert_array_equal(back.routed_experts, trace.routed_experts)
    np.testing.assert_array_equal(back.offsets, trace.offsets)
