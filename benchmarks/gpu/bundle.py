"""Build one folder with everything that the check needs on a machine that has torch with CUDA and no network.

    make gpu-bundle                                   # ARGS="--python 3.12 --machine x86_64"

The folder is `build/gpu-bundle`. Copy it to the machine and start its `run.sh`. The wheels are downloaded in the
versions of constraints.txt, which needs a network; the check itself needs none. A wheel is an archive of what belongs
into a folder of packages: unpacking it into a folder of its own installs it for this check, without pip and without a
change to the machine. Needs the standard library alone, and `packaging` to build.
"""

import argparse
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

MAX_BYTES = 60 << 20
"""Machines that are lent take little with them."""
LEAST = {
    "megatron-core": "0.16",
    "numpy": "1.26",
    "packaging": "24.0",
    "grpcio": "1.71",
    "protobuf": "5.29",
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
_FOR = "made-for.txt"
_ROOT = Path(__file__).parents[2]
_SOURCES = (
    *("services", "trainer_agent", "kernels", "proto", "pyproject.toml", ":(glob)*.md", "LICENSE"),
    *("benchmarks/__init__.py", "benchmarks/gpu", "tests/conftest.py", "tests/harness", "tests/gpu"),
    "tests/distributed",
    ":(glob)docs/**/*.md",  # one layout of ranks runs the Python of a page
)
"""What git's pathspecs name."""
_MANYLINUX = ("_2_28", "_2_27", "_2_26", "_2_24", "_2_17", "2014", "1")


def build(folder: Path, wheels: Sequence[Path], made_for: str, max_bytes: int = MAX_BYTES) -> int:
    """Build the bundle in place of what `folder` held; return its size in bytes.

    Args:
        folder: the bundle.
        wheels: the wheels to take.
        made_for: the Python and the processor that the wheels are for, as `this_machine` names them.
        max_bytes: the size that is refused if the bundle exceeds it.

    Raises:
        ValueError: the bundle would be larger, so there is none.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *_SOURCES).split("\0"):
        if name and (_ROOT / name).is_file():
            target = folder / "sources" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(_ROOT / name, target)
    (folder / "wheels").mkdir()
    for each in wheels:
        shutil.copy2(each, folder / "wheels")
    (folder / "wheels" / _FOR).write_text(made_for)
    (folder / "commit").write_text(_git("describe", "--always", "--dirty"))
    shutil.copy2(_ROOT / "benchmarks/gpu/run.sh", folder)
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    if (total := sum(sizes.values())) > max_bytes:
        largest = ", ".join(sorted(sizes, key=lambda name: -sizes[name])[:5])
        shutil.rmtree(folder)
        raise ValueError(f"expected at most {max_bytes >> 20} MiB, got {total >> 20}; the largest files are {largest}")
    return total


def pins(constraints: str, python: str) -> list[str]:
    """Return `NAME==VERSION` for every package that travels, for a version of Python such as "3.12".

    Raises:
        ValueError: the constraints, the text of constraints.txt, do not pin a package.
    """
    from packaging.requirements import Requirement

    lines = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    found = {
        re.sub(r"[-_.]+", "-", each.name).lower(): f"{each.name}{each.specifier}"
        for each in map(Requirement, lines)
        if each.marker is None or each.marker.evaluate({"python_version": python})
    }
    if unpinned := [name for name in LEAST if name not in found]:
        raise ValueError(f"expected constraints.txt to pin {', '.join(unpinned)} for Python {python}; it does not")
    return [found[name] for name in LEAST]


def this_machine() -> str:
    """Return the version of this Python and the processor, such as "3.12 x86_64"."""
    return f"{sys.version_info.major}.{sys.version_info.minor} {platform.machine()}"


def installed_version(package: str) -> str | None:
    """Return the version of a package of this Python, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def unpack_missing(folder: Path, site: Path, installed: Callable[[str], str | None] = installed_version) -> list[str]:
    """Unpack the wheels whose package is not installed, or older than `LEAST` says; return their files.

    Raises:
        SystemExit: the wheels are for another Python or processor.
    """
    made_for = (folder / _FOR).read_text()
    if made_for != this_machine():
        options = "--python {} --machine {}".format(*this_machine().split())
        raise SystemExit(
            f"expected wheels for {this_machine()}, got some for {made_for}: make gpu-bundle ARGS={options!r}"
        )
    taken = []
    for wheel in sorted(folder.glob("*.whl")):
        package = wheel.name.partition("-")[0].replace("_", "-").lower()
        have = installed(package)
        if have is None or _release(have) < _release(LEAST.get(package, "0")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
            taken.append(wheel.name)
    return taken


def _release(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)[:2]]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True).stdout


def _download(folder: Path, python: str, machine: str) -> list[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    platforms = [f"--platform=manylinux{each}_{machine}" for each in _MANYLINUX]
    only = ["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms]
    wanted = pins((_ROOT / "constraints.txt").read_text(), python)
    command = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={folder}", *only, *wanted]
    subprocess.run(command, check=True)
    return sorted(folder.glob("*.whl"))


def main() -> int:
    """Download, build and say what came out; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="the version of Python on the machine with the GPU")
    parser.add_argument("--machine", default="x86_64", choices=["x86_64", "aarch64"], help="its processor")
    arguments = parser.parse_args()
    folder = _ROOT / "build" / "gpu-bundle"
    try:
        wheels = _download(_ROOT / "build" / "gpu-wheels", arguments.python, arguments.machine)
        size_bytes = build(folder, wheels, f"{arguments.python} {arguments.machine}")
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"gpu-bundle: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: {size_bytes >> 20} of {MAX_BYTES >> 20} MiB, {len(wheels)} wheels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
