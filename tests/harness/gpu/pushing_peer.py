"""`python -m harness.gpu.pushing_peer` opens slots of another process through CUDA IPC, and pushes on request.

The program reads pickles from standard input: first the handles of the slots, then numbers. For each number it pushes
`contents(number)`, waits for the device and prints a line. It ends when its input ends.
"""

import pickle
import sys

import torch
from torch import Tensor

from relibra.kernels import driver, expert_push

SHAPES = ((1536, 2048), (2048, 768), (33,))


def contents(number: int) -> list[Tensor]:
    """Return the bf16 tensors that are pushed for `number`, on the CPU."""
    random = torch.Generator().manual_seed(number)
    return [torch.randn(shape, generator=random).bfloat16() for shape in SHAPES]


def main() -> None:
    torch.cuda.init()
    assert driver.device(0) is not None
    slots = [rebuild(*args) for rebuild, args in pickle.load(sys.stdin.buffer)]
    print("ready", flush=True)
    while True:
        try:
            number = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        expert_push([tensor.cuda() for tensor in contents(number)], slots, num_sms=8)
        torch.cuda.synchronize()
        print("pushed", flush=True)


if __name__ == "__main__":
    main()
