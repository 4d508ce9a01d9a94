"""The options and the client of verbs that only read: they ask the status service."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar

import typer

from relibra.errors import UnknownJob
from relibra.wire.status_service import DEFAULT_URL, URL_VARIABLE, StatusService

__all__ = ["DEFAULT_URL", "AttemptNumber", "JobId", "StatusClient", "StatusUrl", "Step", "naming_unknown"]

StatusUrl = Annotated[str, typer.Option("--url", envvar=URL_VARIABLE, help="URL of the status service.")]
JobId = Annotated[str, typer.Argument(help="Id of the job.", show_default=False)]
AttemptNumber = Annotated[
    int | None,
    typer.Option("--attempt", min=1, help="Number of an attempt of the job; the current one by default."),
]
Step = Annotated[int, typer.Argument(min=0, help="Number of the RL step.", show_default=False)]


@contextmanager
def naming_unknown(job_id: str) -> Iterator[None]:
    """Let the error about a job that is not registered say how to find those that are."""
    try:
        yield
    except UnknownJob:
        raise UnknownJob(f"job {job_id!r} is not registered: `relibra jobs list` lists those that are") from None


class StatusClient(StatusService):
    """The status service, as the command line names it."""

    option: ClassVar[str] = "--url"

    def get_of_job(self, job_id: str, *path: str | int, **query: str | int | None) -> Any:
        """Return a JSON document about a job; the arguments and errors are those of `get`.

        Raises:
            UnknownJob: the job is not registered.
        """
        with naming_unknown(job_id):
            return self.get("v1", "jobs", job_id, *path, **query)
