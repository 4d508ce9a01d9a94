"""The bundle: what it holds, and the size that it refuses."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu.bundle.build import build, checked_size


def test_a_bundle_holds_sources_wheels_and_a_script(tmp_path: Path) -> None:
    wheel, bundle = tmp_path / "one-1.0-py3-none-any.whl", tmp_path / "bundle"
    wheel.write_bytes(b"x")
    size_bytes = build(bundle, [wheel])
    assert size_bytes == checked_size(bundle, size_bytes)
    assert sorted(path.name for path in bundle.iterdir()) == ["bundle.json", "run.sh", "sources", "wheels"]
    for held in ("kernels/relibra/kernels/csrc/quota_remap.cu", "tests/gpu", "tests/conftest.py", "pyproject.toml"):
        assert (bundle / "sources" / held).exists()
    assert not (bundle / "sources" / "docs" / "images").exists()
    assert not (bundle / "sources" / "tests" / "planning").exists()
    assert (bundle / "run.sh").stat().st_mode & 0o100
    contents = json.loads((bundle / "bundle.json").read_text())
    assert contents["wheels"] == [wheel.name]
    assert len(contents["commit"]) == 40


def test_a_larger_bundle_is_refused_and_the_former_one_stays(tmp_path: Path) -> None:
    wheel, bundle = tmp_path / "big-1.0-py3-none-any.whl", tmp_path / "bundle"
    wheel.write_bytes(b"x" * (9 << 20))
    bundle.mkdir()
    (bundle / "former").touch()
    with pytest.raises(ValueError, match=r"at most 9 MiB, got 1\d\.\d; the largest files are wheels/big-1\.0"):
        build(bundle, [wheel], max_bytes=9 << 20)
    assert [path.name for path in bundle.iterdir()] == ["former"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [wheel.name, "bundle"]


def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the file name of a wheel"):
        build(tmp_path / "bundle", [tmp_path / "grpcio-1.85.1.tar.gz"])
