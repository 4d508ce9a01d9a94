"""The settings of a plug-in, from the framework's own configuration or from `RELIBRA_*` in the environment."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from relibra.errors import InvalidInput
from relibra.wire.job_id import nearest_job_id

VARIABLES = {
    "planner": "RELIBRA_PLANNER",
    "job": "RELIBRA_JOB",
    "slots": "RELIBRA_SLOTS",
    "plan_timeout_s": "RELIBRA_PLAN_TIMEOUT_S",
    "pack": "RELIBRA_PACK",
}
"""The environment variable of each setting."""
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
EMBEDDED = "embedded"
"""The name of the planner that the job starts for itself; see `plugins.embedded`."""
DEFAULT_PLAN_TIMEOUT_S = 30.0


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
        if (pack := packs(configured, environment)) and not may_pack:
            raise InvalidInput.of(
                "relibra.pack",
                expected="false, because this framework hands over no choice of ranks "
                "(docs/integrations/README.md#who-chooses-the-schedule)",
                got=True,
            )
        return cls(
            planner=values["planner"],
            job=values.get("job") or default_job,
            slots=int(_number("slots", values["slots"])) if values.get("slots") else None,
            plan_timeout_s=_number("plan_timeout_s", values.get("plan_timeout_s", DEFAULT_PLAN_TIMEOUT_S)),
            pack=pack,
        )

    def variables(self) -> dict[str, str]:
        """Return the environment variables that say the same."""
        return {
            VARIABLES[name]: str(value)
            for name, value in asdict(self).items()
            if value is not None and value is not False
        }


def packs(configured: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Return whether the user lets relibra choose where sequences start; the other settings may be missing or wrong.

    Raises:
        InvalidInput: the value is neither true nor false.
    """
    value = str(configured.get("pack", environment.get(VARIABLES["pack"]) or False))
    if value.lower() not in _FLAGS:
        raise InvalidInput.of("relibra.pack", expected="true or false", got=value)
    return _FLAGS[value.lower()]


def job_name(*names: str | None, default: str) -> str:
    """Return the name of a job that a framework's own names give, or `default` if there are none."""
    return nearest_job_id("-".join(filter(None, names))) or default


def _number(name: str, value: str | float) -> float:
    try:
        number = float(value)
    except ValueError as error:
        raise InvalidInput.of(f"relibra.{name}", expected="a number", got=value) from error
    if number < 0 or (name == "slots" and number != int(number)):
        raise InvalidInput.of(f"relibra.{name}", expected="a number of at least 0", got=value)
    return number
