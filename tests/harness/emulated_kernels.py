"""Kernels on the CPU. `python -m harness.emulated_kernels FOLDER` runs the kernels whose threads share memory."""

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from relibra.kernels import REST, cuda, reference
from relibra.kernels.launch import Launch, Run
from relibra.kernels.sources import FOLDER, KERNELS

_HEADER = Path(__file__).parents[1] / "kernels" / "cuda_on_cpu.h"
_FLAGS = (
    "-O1",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-Wno-clobbered",
)


def compile_for_cpu(compiler: str, file: str, source: Path, folder: Path, options: Sequence[str]) -> None:
    """Compile the kernels of `file` from `source` into `folder`."""
    lines = [f'#include "{_HEADER}"', f'#include "{source}"']
    lines += [f"EMULATE({kernel})" for kernel, its_file in KERNELS.items() if its_file == file]
    unit = folder / f"{file}.cpp"
    unit.write_text("\n".join(lines) + "\n")
    command = [compiler, *_FLAGS, "-I", str(FOLDER), *options, "-o", str(folder / f"{file}.so"), str(unit)]
    subprocess.run(command, check=True)


def emulate(folder: Path, backwards: bool) -> Run:
    """Return a `Run` of compiled kernels, with threads and blocks in this order."""
    libraries = {file: ctypes.CDLL(str(folder / f"{file}.so")) for file in set(KERNELS.values())}

    def run(launch: Launch) -> None:
        function = getattr(libraries[KERNELS[launch.kernel]], f"emulate_{launch.kernel}")
        function(launch.arguments, *launch.num_blocks, launch.num_threads, backwards)

    return run


def main(folder: Path) -> None:
    run = emulate(folder, backwards=False)
    num_ranks, num_experts = 8, 16
    generator = torch.Generator().manual_seed(0)
    chosen_TE = torch.rand(70, num_experts, generator=generator) < 0.5
    counts_RE = torch.randint(0, 100, (num_ranks, num_experts), dtype=torch.int32, generator=generator)
    counts_RE[:, ::2] *= 10  # every rank is home to an expert that the next one has a copy of
    home_R2 = torch.arange(num_experts, dtype=torch.int32).view(num_ranks, 2)
    slot_expert_P = torch.cat([home_R2, home_R2[:, :1].roll(1, 0)], dim=1).flatten()
    share_P = cuda.token_split(run, counts_RE, slot_expert_P, num_ranks, 0)
    assert (share_P.view(num_ranks, 3)[:, :2] == REST).all()
    routed = cuda.quota_remap(run, chosen_TE.float(), chosen_TE, slot_expert_P, share_P)
    wanted = reference.quota_remap(chosen_TE.float(), chosen_TE, slot_expert_P, share_P)
    assert all(map(torch.equal, routed, wanted))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
