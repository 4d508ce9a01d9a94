"""Which launch of a training this process belongs to, as far as the process can tell.

A launcher that starts its workers again says so in their environment, so that the new workers need not wait until the
planner is sure that the old ones are gone. Every launcher that is not known here costs that wait, and nothing else.
"""

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from relibra.planning.launch import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The attempt of its job that a trainer rank belongs to."""

    epoch: int
    launch: str
    """Names the launch that registered the attempt."""
    is_bound: bool
    """Whether that launch is known to be the rank's own; if not, the rank should ask again after `renew_s`."""
    renew_s: float
    """How often one rank should ask again, so that the attempt stays alive."""


ATTEMPT_VARIABLE = "RELIBRA_ATTEMPT"
"""Names the launch for all of its processes, trainers and rollout workers; it must differ from launch to launch."""
_process_names: dict[int, str] = {}


def process_name() -> str:
    """Return a random text that names this process, and no other that ever ran."""
    return _process_names.setdefault(os.getpid(), uuid.uuid4().hex)  # a forked process is another one


def this_launch(token: str | None = None) -> Launch:
    """Return the launch of this process.

    Args:
        token: the token of the launch; by default `RELIBRA_ATTEMPT`, and without it a random one for this process.
    """
    return launch_of(
        os.environ,
        token=token,
        host=socket.gethostname(),
        pid=os.getpid(),
        parent=_parent(),
        random_token=process_name(),
    )


def launch_of(
    environment: Mapping[str, str], *, token: str | None, host: str, pid: int, parent: str, random_token: str
) -> Launch:
    """Return the launch of a process with this environment.

    Args:
        environment: its environment variables.
        token: the token that the caller chose, if any.
        host: its host name.
        pid: its process id.
        parent: tells its parent process from every other process that ever ran on the host.
        random_token: the token if the environment has none.
    """
    launcher, restart = "", "0"
    if "TORCHELASTIC_RESTART_COUNT" in environment:
        # The run id alone does not do: people start torchrun again and again under one run id.
        launcher = f"torchelastic {environment.get('TORCHELASTIC_RUN_ID', '')} {host} {parent}"
        restart = environment["TORCHELASTIC_RESTART_COUNT"]
    elif "SLURM_JOB_ID" in environment and "SLURM_STEP_ID" in environment:
        launcher = f"slurm {environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
        restart = environment.get("SLURM_RESTART_COUNT", "0")
    return Launch(
        token=token or environment.get(ATTEMPT_VARIABLE) or random_token,
        owner=f"{host}:{pid}",
        launch=launcher,
        restart=int(restart) if restart.isdecimal() else 0,
    )


def worker_age_s(environment: Mapping[str, str]) -> float | None:
    """Return how long ago torchrun started this process; None under launchers that start processes one by one.

    torchrun does not count a restart that another node caused (TORCHELASTIC_RESTART_COUNT), but no worker outlives one.
    """
    if "TORCHELASTIC_RESTART_COUNT" not in environment:
        return None
    try:
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
        return age_s(uptime_s, int(_start_ticks("self")) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError):
        return None


def age_s(uptime_s: float, started_s: float) -> float | None:
    """Return how long ago a process started; None if the two times do not count from the same moment.

    Under lxcfs the uptime is that of the container, but the start of a process counts from the start of the machine.
    """
    return uptime_s - started_s if uptime_s >= started_s else None


def _parent() -> str:
    """Return the parent's process id and start time; process ids alone are used again."""
    parent = os.getppid()
    try:
        started = _start_ticks(str(parent))
    except OSError:
        started = "?"
    return f"{parent} {started}"


def _start_ticks(process: str) -> str:
    """Return when a process started, in clock ticks since the machine started."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
