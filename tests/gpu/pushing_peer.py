"""`python pushing_peer.py`: opens the slots and flag it is sent through CUDA IPC, and pushes when told to.

Reads pickles from standard input: first the handles, then numbers; for each number it pushes `contents(number)` with
the number as flag value, and answers with a line. Ends with its input.
"""

import pickle
import sys

import torch
from torch import Tensor

from relibra.kernels import driver, expert_push

SHAPES = ((1536, 2048), (2048, 768), (33,))


def contents(number: int) -> list[Tensor]:
    """What is pushed in round `number`, in bf16, on the CPU."""
    random = torch.Generator().manual_seed(number)
    return [torch.randn(shape, generator=random).bfloat16() for shape in SHAPES]


def main() -> None:
    torch.cuda.init()
    assert driver.device(0) is not None
    *slots, flag = [rebuild(*args) for rebuild, args in pickle.load(sys.stdin.buffer)]
    print("ready", flush=True)
    while True:
        try:
            number = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        expert_push([tensor.cuda() for tensor in contents(number)], slots, flag, number, num_sms=8)
        torch.cuda.synchronize()
        print("pushed", flush=True)


if __name__ == "__main__":
    main()
