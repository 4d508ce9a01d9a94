"""Regenerate `relibra/v1/*_pb2*` from the .proto files, or check that what is committed is up to date.

    python proto/generate.py            write
    python proto/generate.py --check    exit 1 and name the files that differ

The toolchain of `toolchain.txt` is installed into a virtual environment of its own, so that neither its age nor its
dependencies touch the environment you work in.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PACKAGE = Path("relibra/v1")
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def toolchain() -> Path:
    """Return the bin folder of an environment that holds exactly `toolchain.txt`, building it on first use."""
    home = ROOT.parent / ".venv-proto"
    stamp = home / "toolchain.txt"
    wanted = (ROOT / "toolchain.txt").read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(home, with_pip=True, clear=True)
        subprocess.run(
            [home / "bin/python", "-m", "pip", "install", "--quiet", "-r", ROOT / "toolchain.txt"], check=True
        )
        stamp.write_text(wanted)
    return home / "bin"


def generate(into: Path) -> None:
    """Write the generated modules of every .proto file below `into`."""
    tools = toolchain()
    protos = [str(path.relative_to(ROOT)) for path in sorted((ROOT / PACKAGE).glob("*.proto"))]
    options = ["-I", ".", *(f"--{kind}_out={into}" for kind in ("python", "pyi", "grpc_python", "mypy_grpc"))]
    subprocess.run(
        [tools / "python", "-m", "grpc_tools.protoc", *options, *protos],
        cwd=ROOT,
        check=True,
        env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
    )


def modules(below: Path) -> dict[str, bytes]:
    """Map file name to content for every generated module below `below`."""
    folder = below / PACKAGE
    return {path.name: path.read_bytes() for pattern in GENERATED for path in folder.glob(pattern)}


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        committed, fresh = modules(ROOT), modules(Path(folder))
    stale = sorted(name for name in committed.keys() | fresh.keys() if committed.get(name) != fresh.get(name))
    if stale:
        print("out of date, run `make proto`:", *stale, sep="\n  ", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
