"""The packages that travel with the check, and which of them a machine lacks. Needs the standard library alone.

A wheel is an archive of what belongs into a folder of packages. Unpacking it into a folder of its own installs it for
this check, without pip and without a change to the machine.
"""

import platform
import re
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LEAST = {
    "megatron-core": "0.16",
    "numpy": "1.26",
    "packaging": "24.0",
    "grpcio": "1.71",
    "protobuf": "5.29",
    "opentelemetry-api": "1.27",
    "pybase64": "1.4",
    "redis": "6.0",
    "pytest": "8.3",
    "pluggy": "1.6",
    "iniconfig": "2.0",
    "pygments": "2.15",
    "pytest-timeout": "2.3",
    "hypothesis": "6.100",
    "sortedcontainers": "2.1",
}
"""The packages that travel, each with the version that a machine must have not to need the wheel."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel, read from the name of its file."""

    file: str
    package: str
    """The name as pip normalises it."""
    python: str
    abi: str
    platform: str

    @classmethod
    def of(cls, file: str) -> "Wheel":
        """Read the name of a file.

        Raises:
            ValueError: it is no name of a wheel.
        """
        parts = file.removesuffix(".whl").split("-")
        if not file.endswith(".whl") or len(parts) not in (5, 6):
            raise ValueError(f"expected the file name of a wheel, NAME-VERSION-PYTHON-ABI-PLATFORM.whl; got {file}")
        return cls(file, normalised(parts[0]), *parts[-3:])

    def fits(self, python: tuple[int, int], machine: str) -> bool:
        """Return whether an interpreter of this version on this kind of processor can import the wheel."""
        major, minor = python
        if self.platform != "any" and not self.platform.endswith(machine):
            return False
        if self.abi == "abi3":
            oldest = [int(each.removeprefix("cp3")) for each in self.python.split(".") if each.startswith("cp3")]
            return major == 3 and bool(oldest) and min(oldest) <= minor
        return bool({f"py{major}", f"cp{major}{minor}"} & set(self.python.split(".")))


def pins(constraints: str, python: str) -> list[str]:
    """Return `NAME==VERSION` for every package that travels, for a version of Python.

    Args:
        constraints: the text of constraints.txt: `NAME==VERSION`, perhaps with a marker on `python_version`.
        python: such as "3.12".

    Raises:
        ValueError: the constraints do not pin a package.
    """
    from packaging.requirements import Requirement

    lines = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    found = {
        normalised(each.name): f"{each.name}{each.specifier}"
        for each in map(Requirement, lines)
        if each.marker is None or each.marker.evaluate({"python_version": python})
    }
    unpinned = [name for name in LEAST if name not in found]
    if unpinned:
        raise ValueError(f"expected constraints.txt to pin {', '.join(unpinned)} for Python {python}; it does not")
    return [found[name] for name in LEAST]


def missing(wheels: Sequence[Wheel], installed: Mapping[str, str | None]) -> list[Wheel]:
    """Return the wheels whose package is not installed, or is older than `LEAST` says.

    Args:
        wheels: the wheels that travelled.
        installed: the version of every package on the machine; None if it is not installed.
    """
    return [
        each
        for each in wheels
        if (have := installed[each.package]) is None or _release(have) < _release(LEAST.get(each.package, "0"))
    ]


def unpack_missing(
    folder: Path, site: Path, installed: Callable[[str], str | None] | None = None
) -> tuple[list[str], Path]:
    """Unpack the wheels that this machine lacks into `site`; return their files, and `site`.

    Prints the wheels that the machine lacks and that do not fit its interpreter. The stages that need such a package
    then say so.
    """
    find = installed or _installed
    wheels = [Wheel.of(path.name) for path in sorted(folder.glob("*.whl"))]
    site.mkdir(parents=True, exist_ok=True)
    taken = []
    for wheel in missing(wheels, {each.package: find(each.package) for each in wheels}):
        if not wheel.fits(sys.version_info[:2], platform.machine()):
            here = f"Python {platform.python_version()} on {platform.machine()}"
            print(f"gpu-check: {wheel.file} does not fit {here}; build the bundle with --python for it", flush=True)
            continue
        with zipfile.ZipFile(folder / wheel.file) as archive:
            archive.extractall(site)
        taken.append(wheel.file)
    return taken, site


def normalised(name: str) -> str:
    """Return the name of a package as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"\d+(?:\.\d+)*", text)[0].split("."))  # type: ignore[index]


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
