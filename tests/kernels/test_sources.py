"""The table of kernels, and every file compiled by the toolkit's own compiler as well."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from relibra.kernels.sources import FOLDER, KERNELS


def test_the_table_names_every_kernel_and_its_file() -> None:
    found = {
        kernel: path.name
        for path in sorted(FOLDER.glob("*.cu"))
        for kernel in re.findall(
            r'extern "C" __global__ void(?:\s+__launch_bounds__\(\d+\))?\s+(\w+)\(', path.read_text()
        )
    }
    assert found == KERNELS


def _nvcc() -> str | None:
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or [] if spec else []:
        if (compiler := Path(root) / "cu13" / "bin" / "nvcc").exists():
            return str(compiler)
    return shutil.which("nvcc")


@pytest.mark.long
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
