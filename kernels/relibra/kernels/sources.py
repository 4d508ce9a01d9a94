"""The CUDA C++ files of this package, and their compiled code."""

from functools import cache
from pathlib import Path

from relibra.kernels import nvrtc
from relibra.kernels.cubin_cache import cache_key, cached, default_folder

FOLDER = Path(__file__).parent / "csrc"

KERNELS = {
    "expert_copy": "expert_copy.cu",
    "grad_accumulate": "grad_accumulate.cu",
    "quota_count": "quota_remap.cu",
    "quota_prefix": "quota_remap.cu",
    "quota_place": "quota_remap.cu",
    "quota_give_back": "quota_remap.cu",
}
"""The file that defines each kernel."""
_SHARED = "__shared__"


def with_shared_memory() -> list[str]:
    """Return the kernels of all files in which threads share the memory of their block."""
    if any(_SHARED in text for text in headers().values()):
        return list(KERNELS)
    return [kernel for kernel, file in KERNELS.items() if _SHARED in (FOLDER / file).read_text()]


def headers() -> dict[str, str]:
    """Return the text of every header, by name."""
    return {path.name: path.read_text() for path in sorted(FOLDER.glob("*.cuh"))}


@cache
def compiled(file: str, capability: int, folder: Path | None = None) -> bytes:
    """Return the compiled code of a file for one compute capability, ready for the driver to load.

    Args:
        file: the name of the file in `FOLDER`.
        capability: ten times the major version plus the minor version, such as 90.
        folder: the folder of the cache on disk; `default_folder()` by default.

    Raises:
        Unsupported: no NVRTC was found, or NVRTC cannot compile the file for this capability.
    """
    compiler = nvrtc.load()
    source, included, target = (FOLDER / file).read_text(), headers(), compiler.target(capability)
    parts = [source, *included, *included.values(), *nvrtc.FLAGS, target, "{}.{}".format(*compiler.version)]
    return cached(
        folder or default_folder(), cache_key(parts), lambda: compiler.compile(file, source, included, target)[0]
    )
