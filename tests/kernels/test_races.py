"""The thread sanitizer checks for a barrier between what one thread of a block writes and another one uses."""

import shutil
import subprocess
from pathlib import Path

import pytest

from harness import child_process
from harness.emulated_kernels import compile_for_cpu
from relibra.kernels.sources import FOLDER, KERNELS

_BARRIER = "__syncthreads();"
_FOUND = 66
"""The exit status of a process in which the sanitizer found a race."""


def raced(folder: Path, file: str = "", barrier: int = 0) -> tuple[int, str]:
    """Run the kernels in threads, but without one barrier of `file`; return the exit status and what was printed."""
    compiler, layout = shutil.which("g++"), shutil.which("setarch")
    if compiler is None or layout is None:
        pytest.skip("needs g++ and setarch")
    library = subprocess.run([compiler, "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True)
    if not Path(library.stdout.strip()).is_file():
        pytest.skip("needs libtsan")
    for each in set(KERNELS.values()):
        source = folder / each
        parts = (FOLDER / each).read_text().split(_BARRIER)
        kept = [_BARRIER] * (len(parts) - 1)
        if each == file:
            kept[barrier] = ";"
        source.write_text("".join(a + b for a, b in zip(parts, [*kept, ""], strict=True)))
        compile_for_cpu(compiler, each, source, folder, ["-g", "-DTHREADS", "-fsanitize=thread"])
    ended = subprocess.run(
        # The sanitizer does not support a random layout of memory.
        [layout, "-R", *child_process.command("harness.emulated_kernels", str(folder))],
        env=child_process.environment(
            LD_PRELOAD=library.stdout.strip(), OMP_NUM_THREADS="1", TSAN_OPTIONS=f"halt_on_error=1:exitcode={_FOUND}"
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return ended.returncode, ended.stderr


def test_kernels_have_no_races(tmp_path: Path) -> None:
    status, printed = raced(tmp_path)
    assert status == 0, printed


@pytest.mark.long
@pytest.mark.parametrize(("file", "barrier"), [("quota_remap.cu", 0), *(("token_split.cu", i) for i in range(3))])
def test_a_kernel_that_lacks_a_barrier_is_caught(tmp_path: Path, file: str, barrier: int) -> None:
    status, printed = raced(tmp_path, file, barrier)
    assert status == _FOUND, printed
    assert "data race" in printed
