"""The table of kernels, and every file compiled by the toolkit's own compiler as well."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from relibra.kernels import nvrtc, sources
from relibra.kernels.sources import FOLDER, KERNELS, compiled


def test_the_table_names_every_kernel_and_its_file() -> None:
    found = {
        kernel: path.name
        for path in sorted(FOLDER.glob("*.cu"))
        for kernel in re.findall(
            r'extern "C" __global__ void(?:\s+__launch_bounds__\(\d+\))?\s+(\w+)\(', path.read_text()
        )
    }
    assert found == KERNELS


def test_the_kernels_with_shared_memory_are_read_from_the_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "quota_prefix" in sources.with_shared_memory()
    assert "expert_copy" not in sources.with_shared_memory()
    (tmp_path / "one.cu").write_text("__global__ void one() {}")
    (tmp_path / "two.cu").write_text("__global__ void two() { __shared__ int sums[2]; }")
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    monkeypatch.setattr(sources, "KERNELS", {"one": "one.cu", "two": "two.cu"})
    assert sources.with_shared_memory() == ["two"]
    (tmp_path / "both.cuh").write_text("__device__ void both() { __shared__ int sums[2]; }")
    assert sources.with_shared_memory() == ["one", "two"]


def _nvcc() -> str | None:
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or [] if spec else []:
        if (compiler := Path(root) / "cu13" / "bin" / "nvcc").exists():
            return str(compiler)
    return shutil.which("nvcc")


@pytest.mark.parametrize("file", sorted(set(KERNELS.values())))
def test_nvcc_takes_every_file_with_warnings_as_errors(file: str, tmp_path: Path) -> None:
    compiler = _nvcc()
    if compiler is None:
        pytest.skip("needs nvcc")
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, which nvcc calls")
    targets = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in (80, 90, 100)]
    strict = ["-std=c++17", "-Werror=all-warnings", "-Xptxas=-Werror,--warn-on-spills"]
    command = [compiler, "-fatbin", *targets, *strict, "-o", str(tmp_path / "code"), str(FOLDER / file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.usefixtures("compiler")
def test_the_second_start_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled("expert_copy.cu", 90, tmp_path)
    sources.compiled.cache_clear()
    monkeypatch.setattr(nvrtc.Nvrtc, "compile", lambda *_: pytest.fail("compiled again"))
    assert compiled("expert_copy.cu", 90, tmp_path) == first
    assert len(list(tmp_path.iterdir())) == 1
