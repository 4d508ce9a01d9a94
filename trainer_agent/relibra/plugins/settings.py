"""The settings of a plug-in, from the framework's own configuration or from `RELIBRA_*` in the environment."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from math import isfinite
from typing import Any, Self

from relibra.errors import InvalidInput
from relibra.planning.machines.hardware import HARDWARE
from relibra.wire.job_id import nearest_job_id

VARIABLES = {
    "planner": "RELIBRA_PLANNER",
    "job": "RELIBRA_JOB",
    "slots": "RELIBRA_SLOTS",
    "plan_timeout_s": "RELIBRA_PLAN_TIMEOUT_S",
    "pack": "RELIBRA_PACK",
    "hardware": "RELIBRA_HARDWARE",
    "reorder": "RELIBRA_REORDER",
    "transport": "RELIBRA_TRANSPORT",
    "host_copy": "RELIBRA_HOST_COPY",
    "memory_budget_gib": "RELIBRA_MEMORY_BUDGET_GIB",
    "guard": "RELIBRA_GUARD",
    "mode": "RELIBRA_MODE",
}
"""The environment variable of each setting."""
_CHOICES = {
    "hardware": tuple(HARDWARE),
    "reorder": ("auto", "never", "always"),
    "transport": ("auto", "symmetric", "process_group"),
}
_FLAGS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
EMBEDDED = "embedded"
"""The name of the planner that the job starts for itself; see `plugins.embedded`."""
DEFAULT_PLAN_TIMEOUT_S = 30.0


class Mode(StrEnum):
    """What a plug-in does."""

    BALANCE = "balance"
    OBSERVE = "observe"
    """Count and report what routers choose. Nothing moves, and weights, exports and checkpoints stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """What a user may say to a plug-in. Only the planner has no default."""

    planner: str
    """The planner as `host:port`, or `embedded`."""
    job: str
    """The name of the job at the planner; two jobs that train at the same time need two names."""
    slots: int | None = None
    """The redundant slots of each rank: memory for so many replicas of one layer. None: as many as `slots_that_fit`."""
    plan_timeout_s: float = DEFAULT_PLAN_TIMEOUT_S
    """The longest time that a pass waits for its plan."""
    pack: bool = False
    """Whether relibra chooses where sequences start, where the framework hands over that choice."""
    hardware: str | None = None
    """The preset of machines whose speeds are the job's prices. None: the one of the GPU that ranks have."""
    reorder: str = "auto"
    """`never`: every expert keeps its home. `auto`: experts move where copies alone cannot balance; see
    `plan_params.homes_stay`. `always`: they may move on one node too, which saves copies and what these cost."""
    transport: str = "auto"
    """How replicas travel inside a node: `AgentConfig.transport`. `auto`: through symmetric memory if `attach` can have
    it."""
    host_copy: bool | None = None
    """Whether each node keeps a second copy of its experts in host memory: `AgentConfig.host_copy`. None: if it pays;
    see `plugins.host_copy`."""
    memory_budget_gib: float | None = None
    """The most memory that activations of experts may take on a GPU; 0 for no budget. None: what is free at the
    beginning."""
    guard: bool = True
    """Whether steps run plain while planned ones are measured not to be faster."""
    mode: Mode = Mode.BALANCE

    @classmethod
    def read(
        cls, configured: Mapping[str, Any], environment: Mapping[str, str], *, default_job: str, may_pack: bool = True
    ) -> Self:
        """Return the settings; what the framework's configuration says counts more than the environment.

        Args:
            configured: the section `relibra` of the framework's configuration, empty if there is none.
            environment: the environment variables.
            default_job: the name of the job if nobody gives one.
            may_pack: whether the plug-in hands over where sequences start.

        Raises:
            InvalidInput: there is no planner, a name is unknown, a value is not of its kind, or the plug-in does not
                know what to do with it.
        """
        for name in configured:
            if name not in VARIABLES:
                raise InvalidInput.of(f"relibra.{name}", expected="one of " + ", ".join(VARIABLES), got=name)
        values = {name: environment[variable] for name, variable in VARIABLES.items() if environment.get(variable)}
        values |= {name: str(value) for name, value in configured.items()}
        if not values.get("planner"):
            raise InvalidInput.of(
                "relibra.planner",
                expected="the planner as host:port, or embedded, in the section relibra of the configuration or in "
                "RELIBRA_PLANNER in the environment of every worker",
                got="nothing",
            )
        if values["planner"] != EMBEDDED and ":" not in values["planner"]:
            raise InvalidInput.of("relibra.planner", expected=f"host:port or {EMBEDDED}", got=values["planner"])
        chosen = {name: values[name].lower() for name in _CHOICES if values.get(name)}
        for name, choice in chosen.items():
            if choice not in _CHOICES[name]:
                raise InvalidInput.of(f"relibra.{name}", expected=" or ".join(_CHOICES[name]), got=values[name])
        if (pack := packs(configured, environment)) and not may_pack:
            raise InvalidInput.of(
                "relibra.pack",
                expected="false, because this framework hands over no choice of ranks "
                "(docs/integrations/README.md#who-chooses-the-schedule)",
                got=True,
            )
        mode, host_copy = _mode(values.get("mode", Mode.BALANCE)), values.get("host_copy") or "auto"
        if pack and mode is Mode.OBSERVE:
            raise InvalidInput.of("relibra.pack", expected="false with mode=observe, which changes nothing", got=True)
        return cls(
            planner=values["planner"],
            job=values.get("job") or default_job,
            slots=int(_number("slots", values["slots"])) if values.get("slots") else None,
            plan_timeout_s=_number("plan_timeout_s", values.get("plan_timeout_s", DEFAULT_PLAN_TIMEOUT_S)),
            pack=pack,
            host_copy=None if host_copy.lower() == "auto" else _flag("host_copy", host_copy, "auto, true or false"),
            **chosen,
            memory_budget_gib=(
                _number("memory_budget_gib", values["memory_budget_gib"]) if values.get("memory_budget_gib") else None
            ),
            guard=_flag("guard", values.get("guard", True)),
            mode=mode,
        )

    def beside(self, model: str) -> Self:
        """Return the settings of a model beside the policy, which is a job of its own.

        Args:
            model: what the model is, such as "critic".
        """
        return replace(self, job=nearest_job_id(f"{self.job}-{model}"), pack=False)

    def variables(self) -> dict[str, str]:
        """Return the environment variables that say the same."""
        return {VARIABLES[name]: str(value) for name, value in asdict(self).items() if value is not None}


def packs(configured: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Return whether the user lets relibra choose where sequences start; the other settings may be missing or wrong.

    Raises:
        InvalidInput: the value is neither true nor false.
    """
    return _flag("pack", configured.get("pack", environment.get(VARIABLES["pack"]) or False))


def job_name(*names: str | None, default: str) -> str:
    """Return the name of a job that a framework's own names give, or `default` if there are none."""
    return nearest_job_id("-".join(filter(None, names))) or default


def _flag(name: str, value: Any, expected: str = "true or false") -> bool:
    if str(value).lower() not in _FLAGS:
        raise InvalidInput.of(f"relibra.{name}", expected=expected, got=value)
    return _FLAGS[str(value).lower()]


def _mode(value: str) -> Mode:
    if value.lower() not in list(Mode):
        raise InvalidInput.of("relibra.mode", expected=" or ".join(Mode), got=value)
    return Mode(value.lower())


def _number(name: str, value: str | float) -> float:
    try:
        number = float(value)
    except ValueError as error:
        raise InvalidInput.of(f"relibra.{name}", expected="a number", got=value) from error
    if not (isfinite(number) and number >= 0) or (name == "slots" and number != int(number)):
        raise InvalidInput.of(f"relibra.{name}", expected="a number of at least 0", got=value)
    return number
