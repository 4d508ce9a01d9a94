"""Build one folder with the sources, the wheels and the script of the check.

    make gpu-bundle                                   # ARGS="--python 3.12 --machine x86_64"

The folder is `build/gpu-bundle`. Copy it to a machine that has torch with CUDA and start its `run.sh`. It downloads the
wheels in the versions of constraints.txt, which needs a network; the check itself needs none. A folder larger than 60
MiB is refused and not kept, because machines that are lent take little with them.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.bundle.wheels import Wheel, pins

MAX_BYTES = 60 << 20
_ROOT = Path(__file__).parents[3]
_SOURCES = (
    "services",
    "trainer_agent",
    "kernels",
    "proto",
    "benchmarks/__init__.py",
    "benchmarks/results.py",
    "benchmarks/gpu",
    "tests/conftest.py",
    "tests/harness",
    "tests/gpu",
    "tests/distributed",
    "pyproject.toml",
    "LICENSE",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    ":(glob)docs/**/*.md",
)
"""What git's pathspecs name. One layout of ranks runs the Python of a page, so the pages travel too."""
_MANYLINUX = ("2_28", "2_27", "2_26", "2_24", "2_17")


def build(folder: Path, wheels: Sequence[Path], max_bytes: int = MAX_BYTES) -> int:
    """Build the bundle in place of what `folder` held; return its size in bytes.

    Args:
        folder: the bundle.
        wheels: the wheels to take.
        max_bytes: the size that is refused if the bundle exceeds it.

    Raises:
        ValueError: the bundle would be larger, or a file is no wheel. `folder` is then as it was.
    """
    for each in wheels:
        Wheel.of(each.name)
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        for name in _files():
            target = new / "sources" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(_ROOT / name, target)
        (new / "wheels").mkdir()
        for each in wheels:
            shutil.copy2(each, new / "wheels")
        shutil.copy2(_ROOT / "benchmarks/gpu/bundle/run.sh", new)
        (new / "bundle.json").write_text(json.dumps(_contents(wheels), indent=1) + "\n")
        size_bytes = checked_size(new, max_bytes)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return size_bytes


def checked_size(folder: Path, max_bytes: int) -> int:
    """Return the bytes of all files of a folder.

    Raises:
        ValueError: there are more than `max_bytes`; names the largest files.
    """
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    total = sum(sizes.values())
    if total > max_bytes:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
        named = ", ".join(f"{path.relative_to(folder)} ({sizes[path] / (1 << 20):.1f} MiB)" for path in largest)
        expected = f"expected a bundle of at most {max_bytes / (1 << 20):.0f} MiB, got {total / (1 << 20):.1f}"
        raise ValueError(f"{expected}; the largest files are {named}")
    return total


def _files() -> list[str]:
    """Return the files to take: those that git tracks, and new ones that it does not ignore."""
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *_SOURCES)
    return [name for name in listed.split("\0") if name and (_ROOT / name).is_file()]


def _contents(wheels: Sequence[Path]) -> dict[str, object]:
    changed = bool(_git("status", "--porcelain", "--", *_SOURCES))
    return {
        "commit": _git("rev-parse", "HEAD").strip(),
        "has_uncommitted_changes": changed,
        "wheels": sorted(each.name for each in wheels),
    }


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True).stdout


def _download(folder: Path, python: str, machine: str) -> list[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    platforms = [argument for each in _MANYLINUX for argument in ("--platform", f"manylinux_{each}_{machine}")]
    platforms += ["--platform", f"manylinux2014_{machine}", "--platform", f"manylinux1_{machine}"]
    only = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms]
    wanted = pins((_ROOT / "constraints.txt").read_text(), python)
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *only, *wanted], check=True
    )
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
        size_bytes = build(folder, wheels)
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"gpu-bundle: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: {size_bytes / (1 << 20):.1f} of {MAX_BYTES >> 20} MiB, {len(wheels)} wheels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
