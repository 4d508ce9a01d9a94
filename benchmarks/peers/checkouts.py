"""Check out what others publish: `python -m benchmarks.peers.checkouts DIR`.

Only the folders that the benchmark reads are fetched. Nothing is built or installed.
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A repository at the version that the adapters were written against."""

    address: str
    version: str
    """A commit or a tag."""
    folders: tuple[str, ...]
    """What to check out, besides the files at the top."""


CHECKOUTS: Mapping[str, Checkout] = {
    "EPLB": Checkout(
        address="https://github.com/deepseek-ai/EPLB",
        version="d52c72d5b2f2fb4c41afbf8eb21366820239913d",
        folders=(),
    ),
    "vllm": Checkout(
        address="https://github.com/vllm-project/vllm", version="v0.33.0", folders=("vllm/distributed/eplb",)
    ),
    "vllm-ascend": Checkout(
        address="https://github.com/vllm-project/vllm-ascend",
        version="182b75ea84ff13ece27b57391331ef8935410aea",
        folders=("vllm_ascend/eplb",),
    ),
    "sglang": Checkout(
        address="https://github.com/sgl-project/sglang", version="v0.5.23", folders=("python/sglang/srt/eplb",)
    ),
    "LeastLoadedEP": Checkout(
        address="https://github.com/SalesforceAIResearch/LeastLoadedEP",
        version="034974620fc7fbeac98e01b71f1167930761c849",
        folders=("llep",),
    ),
}
"""By name of the folder."""


def check_out(folder: Path, checkouts: Mapping[str, Checkout] = CHECKOUTS) -> None:
    """Check out every repository below `folder`.

    Raises:
        subprocess.CalledProcessError: git failed; it has said why.
    """
    for name, each in checkouts.items():
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        for command in (
            ["init", "-q"],
            ["config", "remote.origin.url", each.address],
            # With a promisor, git fetches the commit first, and on checkout only the files of the folders.
            ["config", "remote.origin.promisor", "true"],
            ["config", "remote.origin.partialclonefilter", "blob:none"],
            ["sparse-checkout", "set", "--cone", *each.folders],
            ["fetch", "-q", "--depth", "1", "origin", each.version],
            ["checkout", "-q", "FETCH_HEAD"],
        ):
            subprocess.run(["git", "-C", str(target), *command], check=True)
        print(f"{name}: {each.version} in {target}")


def main() -> None:
    """Check out everything below the folder that the command line names."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    check_out(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
