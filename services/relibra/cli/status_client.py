"""The options and the client of verbs that only read: they ask the status service."""

from typing import Annotated, Any, ClassVar

import typer

from relibra.cli.completion import complete_watched_job
from relibra.cli.known_jobs import unknown_job
from relibra.errors import UnknownJob
from relibra.wire.status_service import DEFAULT_URL, URL_VARIABLE, StatusService

__all__ = ["DEFAULT_URL", "AttemptNumber", "JobId", "StatusClient", "StatusUrl", "Step"]

StatusUrl = Annotated[str, typer.Option("--url", envvar=URL_VARIABLE, help="URL of the status service.")]
JobId = Annotated[str, typer.Argument(help="Id of the job.", show_default=False, autocompletion=complete_watched_job)]
AttemptNumber = Annotated[
    int | None,
    typer.Option("--attempt", min=1, help="Number of an attempt of the job; the current one by default."),
]
Step = Annotated[int, typer.Argument(min=0, help="Number of the RL step.", show_default=False)]


class StatusClient(StatusService):
    """The status service, as the command line names it."""

    option: ClassVar[str] = "--url"

    def get_of_job(self, job_id: str, *path: str | int, **query: str | int | None) -> Any:
        """Return a JSON document about a job; the arguments and errors are those of `get`.

        Raises:
            UnknownJob: the job is not registered; the text lists the jobs that the viewer may see.
        """
        try:
            return self.get("v1", "jobs", job_id, *path, **query)
        except UnknownJob:
            raise unknown_job(job_id, (job["job_id"] for job in self.get("v1", "jobs"))) from None
