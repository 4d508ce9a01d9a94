import functools
import shutil
from collections.abc import Callable

import pytest

from harness.emulated_kernels import compile_for_cpu, emulate
from relibra.errors import Unsupported
from relibra.kernels import nvrtc
from relibra.kernels.launch import Run
from relibra.kernels.sources import FOLDER, KERNELS

# Undefined behaviour, above all a vector at a misaligned address, ends the process with a message.
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
    for file in set(KERNELS.values()):
        compile_for_cpu(compiler, file, FOLDER / file, folder, _SANITIZE)
    return functools.partial(emulate, folder)


@pytest.fixture(
    params=[False, pytest.param(True, marks=pytest.mark.long)], ids=["forwards", "backwards"], scope="session"
)
def run(request: pytest.FixtureRequest, emulation: Callable[[bool], Run]) -> Run:
    return emulation(request.param)
