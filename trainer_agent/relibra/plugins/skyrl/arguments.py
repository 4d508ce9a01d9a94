"""The arguments of SkyRL's command line, apart from relibra's own, and what they become in the policy's workers."""

from collections.abc import Mapping, Sequence
from typing import Any

from relibra.plugins.settings import PluginSettings, job_name

_PREFIX = "relibra."


def split(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments that SkyRL understands, and the settings `relibra.*`."""
    own = [argument.removeprefix(_PREFIX).partition("=") for argument in arguments if argument.startswith(_PREFIX)]
    skyrl = [argument for argument in arguments if not argument.startswith((_PREFIX, "trainer.override_entrypoint="))]
    return skyrl, {name: value for name, _, value in own}


def variables(trainer: Any, section: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of the policy's workers: the settings, and all others of relibra.

    Args:
        trainer: the section `trainer` of SkyRL's configuration.
        section: the settings `relibra.*`.
        environment: the environment variables of this process.

    Raises:
        InvalidInput: a setting of relibra is missing or wrong.
    """
    job = job_name(trainer.project_name, trainer.run_name, default="skyrl")
    settings = PluginSettings.read(section, environment, default_job=job, may_pack=False)
    of_relibra = {name: value for name, value in environment.items() if name.startswith("RELIBRA_")}
    return of_relibra | settings.variables()
