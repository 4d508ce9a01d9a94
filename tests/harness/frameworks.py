"""`python tests/harness/frameworks.py DIR` checks out the frameworks whose own code some tests run.

The tests find them by `RELIBRA_FRAMEWORKS=DIR`, and are skipped without it.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

BRIDGE = "NeMo-RL/3rdparty/Megatron-Bridge-workspace/Megatron-Bridge"
MEGATRON = f"{BRIDGE}/3rdparty/Megatron-LM"
CHECKOUTS = {
    "slime": ("https://github.com/THUDM/slime", "624b824a898ab0ec1fcb4d373004c7f3852bf515"),
    "miles": ("https://github.com/radixark/miles", "31f1ca961a94cb860cec3b2dea34ec332bfa8f76"),
    "verl": ("https://github.com/verl-project/verl", "1dda039b9c6311889a9c9a26040677e1254814f9"),
    "NeMo-RL": ("https://github.com/NVIDIA-NeMo/RL", "7ea279abfbeb698b092856d0dab61e7cf39bc909"),
    "ROLL": ("https://github.com/alibaba/ROLL", "8eb27cc2dc34c4d1310b169d9b86d339004d811a"),
}
"""The repository and the commit of each framework."""
ON_THE_INDEX = {
    "SkyRL": "https://github.com/NovaSky-AI/SkyRL",
    "AReaL": "https://github.com/areal-project/AReaL",
    "ms-swift": "https://github.com/modelscope/ms-swift",
}
"""The repositories of the frameworks whose releases the environment has; only `harness.canary` checks them out."""
SUBMODULES = {BRIDGE: "NeMo-RL", MEGATRON: BRIDGE}
"""What a framework pins, by the checkout that pins it, which also says where to get it."""
PINNED = {name: f"SkyRL/pinned/{name}" for name in ("megatron-bridge", "megatron-core")}
"""Where the packages are that SkyRL's main branch pins by a commit, if it does. They need not fit the environment's."""
VARIABLE = "RELIBRA_FRAMEWORKS"


def checkout(name: str) -> Path | None:
    """Return the folder of a framework's checkout, None if there is none."""
    folder = Path(os.environ.get(VARIABLE, "nowhere"), name)
    return folder if folder.is_dir() else None


def reason(name: str) -> str:
    """Return why tests of a framework's own code are skipped."""
    maker = "make canary DIR=DIR" if name in ON_THE_INDEX else "python tests/harness/frameworks.py DIR"
    return f"needs a checkout of {name}: {maker}, then {VARIABLE}=DIR"


def check_out(target: Path, address: str, commit: str) -> None:
    """Check out a commit of a repository, or its main branch if `commit` is HEAD.

    Raises:
        CalledProcessError: git fails, for example because there is no network.
    """
    target.mkdir(parents=True, exist_ok=True)
    git(target, "init", "-q")
    git(target, "fetch", "-q", "--depth", "1", address, commit)
    git(target, "checkout", "-q", "FETCH_HEAD")


def check_out_pins(folder: Path, name: str) -> None:
    """Check out what a framework pins, where tests look for it.

    Args:
        folder: the folder of all checkouts.
        name: the framework, which is there.

    Raises:
        CalledProcessError: git fails, for example because there is no network.
    """
    for place, pinned_by in SUBMODULES.items():
        if place.startswith(f"{name}/"):
            relative = str(Path(place).relative_to(pinned_by))
            git(folder / pinned_by, "submodule", "--quiet", "update", "--init", "--depth", "1", relative)
    for package, place in PINNED.items():
        if place.startswith(f"{name}/"):
            project = tomllib.loads((folder / name / "pyproject.toml").read_text())
            source = project["tool"]["uv"]["sources"].get(package, {})
            if "rev" in source:
                check_out(folder / place, source["git"], source["rev"])


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder; return what it prints."""
    return subprocess.run(["git", "-C", str(folder), *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, (address, commit) in CHECKOUTS.items():
        check_out(Path(sys.argv[1], name), address, commit)
        check_out_pins(Path(sys.argv[1]), name)
        print(f"{name}: {commit} in {Path(sys.argv[1], name)}")
