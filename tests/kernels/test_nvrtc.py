"""Every CUDA file compiles for every supported architecture, without warnings and without spilling registers."""

import re

import pytest

from relibra.errors import Unsupported
from relibra.kernels import nvrtc
from relibra.kernels.sources import FOLDER, KERNELS, headers

ARCHITECTURES = (80, 90, 100)


@pytest.mark.long
@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("file", sorted(set(KERNELS.values())))
def test_a_file_compiles_without_warnings_or_spills(compiler: nvrtc.Nvrtc, file: str, capability: int) -> None:
    flags = [*nvrtc.FLAGS, "--ptxas-options=-v", "--ptxas-options=--warn-on-spills"]
    source = (FOLDER / file).read_text()
    target = compiler.target(capability)
    if target != f"sm_{capability}":
        pytest.skip(f"NVRTC {compiler.version} is older than sm_{capability}")
    code, log = compiler.compile(file, source, headers(), target, flags)
    assert code.startswith(b"\x7fELF")
    assert "warning" not in log.lower(), log
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    kernels = [kernel for kernel, its_file in KERNELS.items() if its_file == file]
    assert spills == [("0", "0", "0")] * len(kernels), log
    assert sorted(re.findall(r"Compiling entry function '(\w+)'", log)) == sorted(kernels)


def test_a_device_newer_than_the_compiler_gets_portable_code(compiler: nvrtc.Nvrtc) -> None:
    target = compiler.target(999)
    assert re.fullmatch(r"compute_\d+", target)
    code, _ = compiler.compile("one.cu", 'extern "C" __global__ void one(int* to) { *to = 1; }', {}, target)
    assert b".visible .entry one" in code


def test_a_device_too_old_is_refused(compiler: nvrtc.Nvrtc) -> None:
    with pytest.raises(Unsupported, match="none of which runs on sm_35"):
        compiler.target(35)


def test_a_source_that_does_not_compile_is_refused_with_the_log(compiler: nvrtc.Nvrtc) -> None:
    with pytest.raises(
        Unsupported, match=r"did not compile one\.cu for sm_80:(.|\n)*identifier \"nothing\" is undefined"
    ):
        compiler.compile("one.cu", "__global__ void one() { nothing(); }", {}, "sm_80")
