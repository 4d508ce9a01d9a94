"""The CUDA C++ files of this package, and what they compile to."""

from functools import cache
from pathlib import Path

from relibra.kernels import nvrtc
from relibra.kernels.cubin_cache import cache_key, cached, default_folder

FOLDER = Path(__file__).parent / "csrc"

KERNELS = {
    "expert_copy": "expert_copy.cu",
    "expert_push": "expert_push.cu",
    "grad_accumulate": "grad_accumulate.cu",
    "quota_count": "quota_remap.cu",
    "quota_prefix": "quota_remap.cu",
    "quota_place": "quota_remap.cu",
    "quota_give_back": "quota_remap.cu",
}
"""The file of every kernel."""


def headers() -> dict[str, str]:
    """Text of every header, by name."""
    return {path.name: path.read_text() for path in sorted(FOLDER.glob("*.cuh"))}


@cache
def compiled(file: str, capability: int, folder: Path | None = None) -> bytes:
    """Return a file's code for devices of a compute capability such as 90, as the driver loads it.

    Args:
        file: its name in `FOLDER`.
        capability: ten times major plus minor.
        folder: of the cache on disk; by default `default_folder()`.

    Raises:
        Unsupported: there is no NVRTC, or none that can compile this.
    """
    compiler = nvrtc.load()
    source, included, target = (FOLDER / file).read_text(), headers(), compiler.target(capability)
    parts = [source, *included, *included.values(), *nvrtc.FLAGS, target, "{}.{}".format(*compiler.version)]
    return cached(
        folder or default_folder(), cache_key(parts), lambda: compiler.compile(file, source, included, target)[0]
    )
