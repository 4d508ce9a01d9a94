"""The CUDA C++ files of this package, and their compiled code."""

from pathlib import Path

from relibra.kernels import nvrtc

FOLDER = Path(__file__).parent / "csrc"

KERNELS = {
    "expert_copy": "expert_copy.cu",
    "grad_accumulate": "grad_accumulate.cu",
    "quota_count": "quota_remap.cu",
    "quota_prefix": "quota_remap.cu",
    "quota_place": "quota_remap.cu",
    "quota_give_back": "quota_remap.cu",
    "token_split": "token_split.cu",
}
"""The file that defines each kernel."""


def headers() -> dict[str, str]:
    """Return the text of every header, by name."""
    return {path.name: path.read_text() for path in sorted(FOLDER.glob("*.cuh"))}


def compile_source(file: str, capability: int) -> bytes:
    """Compile a file of `FOLDER`, in less than half a second, and return the code for the driver to load.

    Args:
        file: the name of the file.
        capability: ten times the major version plus the minor version, such as 90.

    Raises:
        Unsupported: no NVRTC was found, or NVRTC cannot compile the file for this capability.
    """
    compiler = nvrtc.load()
    return compiler.compile(file, (FOLDER / file).read_text(), headers(), compiler.target(capability))[0]
