"""The frameworks whose recipes can be read, and how to tell them apart."""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from relibra.cli.recipes.frameworks.command_line import read_command_line
from relibra.cli.recipes.frameworks.configurations import (
    read_areal,
    read_nemo_rl,
    read_roll,
    read_skyrl,
    read_verl,
)
from relibra.cli.recipes.frameworks.draft import Draft


class Framework(StrEnum):
    """A framework whose recipes can be read."""

    SLIME = "slime"
    VERL = "verl"
    NEMO_RL = "nemo-rl"
    SKYRL = "skyrl"
    AREAL = "areal"
    MILES = "miles"
    ROLL = "roll"
    SWIFT = "swift"
    MEGATRON = "megatron"


class Reader(NamedTuple):
    """How the recipes of a framework are read."""

    read: Callable[[Draft], None]
    command: re.Pattern[str]
    """Words of the command line that starts the training; the command with the most of them is the one."""
    sign: re.Pattern[str]
    """Text that only files of this framework have."""


def _reader(read: Callable[[Draft], None], command: str, sign: str) -> Reader:
    return Reader(read, re.compile(command), re.compile(sign, re.M))


READERS = {
    Framework.VERL: _reader(
        read_verl, r"\+*(actor_rollout_ref|engine|optim|model)\.", r"\bactor_rollout_ref[.:]|\bverl\.trainer\."
    ),
    Framework.SKYRL: _reader(
        read_skyrl, r"\+*(trainer|generator|megatron_config)\.", r"\btrainer\.policy\.megatron_config\b|\bskyrl"
    ),
    Framework.NEMO_RL: _reader(
        read_nemo_rl,
        r"\+*(policy|cluster|grpo|sft)\.|--config$|.*run_\w+\.py$",
        r"^  megatron_cfg:|policy\.megatron_cfg|^policy:\s*$",
    ),
    Framework.ROLL: _reader(read_roll, r"--config_(path|name)", r"^actor_train:"),
    Framework.AREAL: _reader(
        read_areal, r"--config$|\+*actor\.", r"^\s+backend: \"?megatron:|^allocation_mode:.*megatron"
    ),
    Framework.SWIFT: _reader(read_command_line, r"--|megatron$|swift", r"^[^#\n]*\bmegatron (rlhf|sft|pt)\b"),
    Framework.MILES: _reader(read_command_line, r"--", r"\bmiles[./_]|MILES_"),
    Framework.SLIME: _reader(
        read_command_line, r"--", r"\bslime[./_]|SLIME_|--(actor-num-gpus-per-node|rollout-num-gpus-per-engine)\b"
    ),
    Framework.MEGATRON: _reader(read_command_line, r"--", r"\bpretrain_\w+\.py\b"),
}
"""In the order in which files are asked for signs."""


def guess_framework(text: str) -> Framework | None:
    """Return the only framework of which a file has signs, or None if there is none or more than one."""
    signed = [framework for framework, reader in READERS.items() if reader.sign.search(text)]
    if Framework.MILES in signed and Framework.SLIME in signed:
        signed.remove(Framework.SLIME)  # miles is a fork, and has its options
    return signed[0] if len(signed) == 1 else None
