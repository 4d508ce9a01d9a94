import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from relibra.errors import Unsupported
from relibra.kernels import nvrtc
from relibra.kernels.launch import Launch, Run
from relibra.kernels.sources import FOLDER, KERNELS

# Undefined behaviour, above all a vector at a misaligned address, ends the process with a message.
_FLAGS = [
    "-O1",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-Wno-clobbered",
]
_SANITIZE = ["-fsanitize=undefined", "-fno-sanitize-recover=undefined"]


@pytest.fixture(scope="session")
def compiler() -> nvrtc.Nvrtc:
    try:
        return nvrtc.load()
    except Unsupported as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Run]:
    """Compile the kernels for this CPU; return a function from `backwards` to a `Run` in that order of threads."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("emulation")
    libraries: dict[str, ctypes.CDLL] = {}
    for file in set(KERNELS.values()):
        source = [f'#include "{Path(__file__).with_name("cuda_on_cpu.h")}"', f'#include "{FOLDER / file}"']
        source += [f"EMULATE({kernel})" for kernel, its_file in KERNELS.items() if its_file == file]
        unit, library = folder / f"{file}.cpp", folder / f"{file}.so"
        unit.write_text("\n".join(source) + "\n")
        subprocess.run([compiler, *_FLAGS, *_SANITIZE, "-o", library, unit], check=True)
        libraries[file] = ctypes.CDLL(str(library))

    def runner(backwards: bool) -> Run:
        def run(launch: Launch) -> None:
            function = getattr(libraries[KERNELS[launch.kernel]], f"emulate_{launch.kernel}")
            function(launch.arguments, *launch.num_blocks, launch.num_threads, backwards)

        return run

    return runner


@pytest.fixture(
    params=[False, pytest.param(True, marks=pytest.mark.long)], ids=["forwards", "backwards"], scope="session"
)
def run(request: pytest.FixtureRequest, emulation: Callable[[bool], Run]) -> Run:
    return emulation(request.param)
