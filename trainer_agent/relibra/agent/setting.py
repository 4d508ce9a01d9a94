"""What the agent says about one setting of Megatron: the values that run, and why it refuses the others."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from relibra.errors import Unsupported


class Refusal(NamedTuple):
    """A setting that the agent does not support, and an alternative."""

    what: str
    alternative: str
    cost: str = ""
    """The price of the alternative."""
    setting: str = ""
    """The name of the setting in Megatron's configuration, if the refusal is about one."""

    @property
    def reason(self) -> str:
        """A sentence that names the setting."""
        return f"relibra's agent does not support {self.what}"

    @property
    def fix(self) -> str:
        """What to do instead."""
        return f"use {self.alternative}"

    @property
    def error(self) -> Unsupported:
        """The error to raise."""
        return Unsupported(f"{self.reason}; {self.fix}")


class Part(StrEnum):
    """The configuration of Megatron that holds a setting."""

    MODEL = "TransformerConfig"
    OPTIMIZER = "OptimizerConfig"
    DDP = "DistributedDataParallelConfig"
    SAVING = "arguments of checkpoints"
    """`attach` does not see these. What does not run is refused in the save."""


class State(StrEnum):
    """Whether the agent runs with a setting."""

    RUNS = "runs"
    """All values run."""
    SOME = "runs with some values"
    REFUSED = "refused"
    """Only the value that switches the setting off runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of Megatron: which values run, and why the others are refused."""

    name: str
    part: Part = Part.MODEL
    runs: str
    """The values that run, for people; empty if only the value that switches the setting off does."""
    tested: str = ""
    """The test, relative to `tests/`, that trains with these values; empty if none does."""
    is_refused: Callable[[Any], bool] = lambda _: False
    """Whether a configuration, which has the attributes of `part`, is refused."""
    what: str = ""
    """The refused values and the reason, for people."""
    got: Callable[[Any], str] | None = None
    """The refused value in a configuration, to be named instead of `what`."""
    instead: str = ""
    cost: str = ""
    """The price of `instead`."""

    @property
    def state(self) -> State:
        """Whether the agent runs with the setting."""
        if not self.what:
            return State.RUNS
        return State.SOME if self.runs else State.REFUSED

    def refusal(self, config: Any) -> Refusal | None:
        """Return the refusal of a configuration, or None if the agent runs with it."""
        if not self.is_refused(config):
            return None
        what = self.what if self.got is None else self.got(config)
        return Refusal(what, self.instead, self.cost, self.name)
