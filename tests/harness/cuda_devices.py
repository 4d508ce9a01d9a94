"""Which sessions of pytest may see the CUDA devices of the machine."""

import os
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1]


def is_gpu_session(arguments: Sequence[str], marker_expression: str, folder: Path) -> bool:
    """Return whether a session, started in `folder`, was asked for tests of `tests/gpu` and for no others."""
    return marker_expression == "gpu" or are_all_in("gpu", arguments, folder)


def are_all_in(room: str, arguments: Sequence[str], folder: Path) -> bool:
    """Return whether the arguments of a session, started in `folder`, name tests of `tests/<room>` and no others."""
    paths = [Path(os.path.normpath(folder / argument.partition("::")[0])) for argument in arguments]
    return bool(paths) and all(path.is_relative_to(TESTS / room) for path in paths)


def hide() -> None:
    """Hide all CUDA devices from this process and its children; call it before torch first asks for a device.

    Megatron, torch and the agent choose what they do by the devices they see, and most tests mean the CPU.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
