"""The bundle: what it holds, the size that it refuses, and which packages a machine takes from it."""

import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu.bundle import LEAST, build, pins, this_machine, unpack_missing

REPOSITORY = Path(__file__).parents[3]


def test_a_bundle_holds_sources_wheels_and_a_script(tmp_path: Path) -> None:
    wheel, bundle = tmp_path / "one-1.0-py3-none-any.whl", tmp_path / "bundle"
    wheel.write_bytes(b"x")
    (bundle / "former").mkdir(parents=True)
    build(bundle, [wheel], this_machine())
    assert sorted(path.name for path in bundle.iterdir()) == ["commit", "run.sh", "sources", "wheels"]
    for held in ("kernels/relibra/kernels/csrc/quota_remap.cu", "tests/gpu", "tests/conftest.py", "pyproject.toml"):
        assert (bundle / "sources" / held).exists()
    assert not (bundle / "sources" / "docs" / "images").exists()
    assert not (bundle / "sources" / "tests" / "planning").exists()
    assert (bundle / "run.sh").stat().st_mode & 0o100
    assert (bundle / "wheels" / wheel.name).read_bytes() == b"x"


def test_a_larger_bundle_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "big-1.0-py3-none-any.whl"
    wheel.write_bytes(b"x" * (9 << 20))
    with pytest.raises(ValueError, match=r"at most 9 MiB, got 1\d; the largest files are wheels/big-1\.0"):
        build(tmp_path / "bundle", [wheel], this_machine(), max_bytes=9 << 20)
    assert [path.name for path in tmp_path.iterdir()] == [wheel.name]


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_the_repository_pins_every_package_that_travels(python: str) -> None:
    pinned = pins((REPOSITORY / "constraints.txt").read_text(), python)
    assert len(pinned) == len(LEAST)
    assert all("==" in each for each in pinned)
    assert (pinned[0] == "megatron-core==0.19.2") == (python == "3.12")


def test_a_package_without_a_pin_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"to pin grpcio, .* for Python 3\.12"):
        pins("megatron-core==0.19.2\nnumpy==2.4.6\npackaging==26.3\n", "3.12")


def wheels_for(machine: str, folder: Path) -> Path:
    (folder / "made-for.txt").write_text(machine)
    for package in ("one", "two", "grpcio", "pytest_timeout"):
        with zipfile.ZipFile(folder / f"{package}-9.0-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{package}/__init__.py", "")
    return folder


def test_what_a_machine_lacks_or_has_too_old_is_unpacked(tmp_path: Path) -> None:
    installed = {"one": None, "two": "2.0", "grpcio": "1.70.2", "pytest-timeout": "2.3rc1"}
    taken = unpack_missing(wheels_for(this_machine(), tmp_path), tmp_path / "site", installed.__getitem__)
    assert taken == ["grpcio-9.0-py3-none-any.whl", "one-9.0-py3-none-any.whl"]
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == ["grpcio", "one"]


def test_wheels_of_another_python_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"got some for 2\.6 x86_64: make gpu-bundle ARGS='--python 3"):
        unpack_missing(wheels_for("2.6 x86_64", tmp_path), tmp_path / "site")
