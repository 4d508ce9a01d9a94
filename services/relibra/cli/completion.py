"""The values that the shell completes: ids of jobs, names of models, hardware, policies, formats and trainers.

Completion never shows an error and never waits long: without an answer there is nothing to complete.
"""

import os
from collections.abc import Iterable

import typer

_TIMEOUT_S = 2.0


def complete_watched_job(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of jobs that the status service shows, and that begin with `incomplete`."""
    from relibra.cli.status_client import DEFAULT_URL, StatusClient

    url = context.params.get("url") or os.environ.get("RELIBRA_STATUS_URL") or DEFAULT_URL
    try:
        found = StatusClient(url, timeout_s=_TIMEOUT_S).get("v1", "jobs")
        return _beginning(incomplete, (job["job_id"] for job in found))
    except Exception:  # a stack trace in the middle of a line helps nobody
        return []


def complete_stored_job(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of jobs that Redis holds, and that begin with `incomplete`."""
    url = context.params.get("redis_url") or os.environ.get("RELIBRA_REDIS_URL")
    if not url:
        return []
    import asyncio

    from relibra.store import Store

    async def read() -> list[str]:
        async with asyncio.timeout(_TIMEOUT_S), Store.open(url) as store:
            return [job.job_id for job in await store.list_jobs()]

    try:
        return _beginning(incomplete, asyncio.run(read()))
    except Exception:  # a stack trace in the middle of a line helps nobody
        return []


def complete_model(incomplete: str) -> list[str]:
    """Return the model presets that begin with `incomplete`; the shell itself completes paths."""
    from relibra.evaluation.model_presets import MODELS

    return _beginning(incomplete, MODELS)


def complete_hardware(incomplete: str) -> list[str]:
    """Return the names of hardware that begin with `incomplete`."""
    from relibra.evaluation.hardware import HARDWARE

    return _beginning(incomplete, HARDWARE)


def complete_policies(incomplete: str) -> list[str]:
    """Return lists of policies that begin with `incomplete`: the last name of a list is completed."""
    from relibra.evaluation.policies import POLICIES

    chosen, comma, last = incomplete.rpartition(",")
    given = chosen.split(",")
    return [f"{chosen}{comma}{name}" for name in _beginning(last, POLICIES) if name not in given]


def complete_format(incomplete: str) -> list[str]:
    """Return the formats of recorded responses that begin with `incomplete`."""
    from relibra.routing.formats import FORMATS

    return _beginning(incomplete, FORMATS)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
