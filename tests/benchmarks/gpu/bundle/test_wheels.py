"""Which packages travel with the check, and which of them a machine takes."""

import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu.bundle.wheels import LEAST, Wheel, missing, pins, unpack_missing

REPOSITORY = Path(__file__).parents[4]
COMPILED = "grpcio-1.85.1-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
STABLE = "protobuf-7.36.2-cp310-abi3-manylinux2014_x86_64.whl"
PURE = "pytest_timeout-2.4.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("file", "python", "machine", "fits"),
    [
        (COMPILED, (3, 12), "x86_64", True),
        (COMPILED, (3, 11), "x86_64", False),
        (COMPILED, (3, 12), "aarch64", False),
        (STABLE, (3, 13), "x86_64", True),
        (STABLE, (3, 9), "x86_64", False),
        (PURE, (3, 12), "aarch64", True),
        ("both-1.0-py2.py3-none-any.whl", (3, 12), "x86_64", True),
    ],
)
def test_a_wheel_fits_by_its_name(file: str, python: tuple[int, int], machine: str, fits: bool) -> None:
    assert Wheel.of(file).fits(python, machine) == fits


def test_a_file_that_is_no_wheel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected the file name of a wheel, .*; got notes\.txt"):
        Wheel.of("notes.txt")


def test_a_machine_lacks_what_is_not_installed_or_too_old() -> None:
    wheels = [Wheel.of(file) for file in (COMPILED, STABLE, PURE)]
    installed = {"grpcio": "1.70.2", "protobuf": "6.0rc1", "pytest-timeout": None}
    assert [each.package for each in missing(wheels, installed)] == ["grpcio", "pytest-timeout"]


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_the_repository_pins_every_package_that_travels(python: str) -> None:
    found = pins((REPOSITORY / "constraints.txt").read_text(), python)
    assert len(found) == len(LEAST)
    assert all("==" in each for each in found)
    assert (found[0] == "megatron-core==0.19.2") == (python == "3.12")


def test_a_package_without_a_pin_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"to pin grpcio, .* for Python 3\.12"):
        pins("megatron-core==0.19.2\nnumpy==2.4.6\npackaging==26.3\n", "3.12")


def test_missing_wheels_are_unpacked_and_others_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    files = ("one-1.0-py3-none-any.whl", "two-1.0-py3-none-any.whl", "three-1.0-cp26-cp26-manylinux1_x86_64.whl")
    for file in files:
        with zipfile.ZipFile(wheels / file, "w") as archive:
            archive.writestr(f"{file[:3]}/__init__.py", "")
    taken, path = unpack_missing(wheels, site, {"one": None, "two": "2.0", "three": None}.get)
    assert (taken, path) == ([files[0]], site)
    assert [each.name for each in site.iterdir()] == ["one"]
    assert f"{files[2]} does not fit Python" in capsys.readouterr().out
