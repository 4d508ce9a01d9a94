"""Arrays from `.npz` files: what is read, and what is refused before memory is taken for it."""

import io
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from relibra.errors import InvalidInput, LimitExceeded
from relibra.routing.npz_file import read_npz

ARRAYS = {
    "ids": np.arange(24, dtype=np.uint16).reshape(2, 3, 4),
    "fortran": np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
    "scalar": np.array(40),
    "names": np.array(["a", "bcd"]),
    "empty": np.zeros((0, 3), np.int64),
    "nameless": np.zeros(3, "U0"),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_as_numpy_wrote_them(tmp_path, save):
    path = tmp_path / "file.npz"
    save(path, other=np.zeros(3), **ARRAYS)
    found = read_npz(path, [*ARRAYS, "absent"])
    with np.load(path) as expected:
        assert found.keys() == ARRAYS.keys()
        for key, array in found.items():
            np.testing.assert_array_equal(array, expected[key], strict=True)


def bomb(path: Path, *, num_tokens: int = 1 << 20, claimed: int | None = None) -> Path:
    """Write zeros as uint8 [T, 4, 8], a thousandth of their size; the header may claim another number of tokens."""
    header = io.BytesIO()
    shape = (num_tokens if claimed is None else claimed, 4, 8)
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        with file.open("routed_experts.npy", "w") as member:
            member.write(header.getvalue())
            for _ in range(num_tokens * 32 >> 20):
                member.write(bytes(1 << 20))
        for key, array in (("offsets", np.array([0, num_tokens])), ("num_experts", np.array(16))):
            with file.open(f"{key}.npy", "w") as member:
                np.lib.format.write_array(member, array)
    assert path.stat().st_size < 1 << 20
    return path


@pytest.mark.long
def test_S7_a_file_that_unpacks_to_far_more_than_its_size_is_refused_by_name(tmp_path, monkeypatch):
    path = bomb(tmp_path / "bomb.npz", num_tokens=1 << 24)
    with pytest.raises(LimitExceeded, match=r"bomb\.npz: \d+ bytes that unpack to \d+, .*RELIBRA_MAX_EXPANSION"):
        read_npz(path, ["routed_experts"])
    assert read_npz(path, ["num_experts"]).keys() == {"num_experts"}, "only what is read counts"
    monkeypatch.setenv("RELIBRA_MAX_EXPANSION", "2000")
    assert read_npz(path, ["routed_experts"])["routed_experts"].shape == (1 << 24, 4, 8)
    monkeypatch.setenv("RELIBRA_MAX_EXPANSION", "much")
    with pytest.raises(InvalidInput, match="RELIBRA_MAX_EXPANSION: expected a whole number"):
        read_npz(path, ["routed_experts"])


@pytest.mark.parametrize(
    "arguments",
    [["trace", "info"], ["record", "--layers", "4", "--experts", "16", "--top-k", "8", "--output", "out.npz"]],
)
def test_S7_the_command_line_refuses_it_in_little_memory(tmp_path, arguments):
    bomb(tmp_path / "bomb.npz", num_tokens=1 << 24)
    done = subprocess.run(
        [sys.executable, "-m", "relibra.cli", *arguments, "bomb.npz"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20)),
    )
    assert done.returncode == 2, done.stderr
    assert "RELIBRA_MAX_EXPANSION" in "".join(done.stderr.split())


@pytest.mark.parametrize("claimed", [1, (1 << 20) + 1, 1 << 50])
def test_S7_a_header_that_does_not_match_its_data_is_refused(tmp_path, monkeypatch, claimed):
    path = bomb(tmp_path / "bomb.npz", claimed=claimed)
    monkeypatch.setenv("RELIBRA_MAX_EXPANSION", "2000")
    with pytest.raises(InvalidInput, match=r"routed_experts: expected \d+ bytes for uint8 .*, got 33554432 bytes"):
        read_npz(path, ["routed_experts"])


def test_python_objects_other_compressions_and_structures_are_refused(tmp_path):
    path = tmp_path / "file.npz"
    np.savez(path, key=np.array([{}]))
    with pytest.raises(InvalidInput, match="key: expected a readable array without Python objects, got object"):
        read_npz(path, ["key"])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file, file.open("key.npy", "w") as member:
        np.lib.format.write_array(member, np.arange(3))
    with pytest.raises(InvalidInput, match="key: expected an array as numpy packs it"):
        read_npz(path, ["key"])
