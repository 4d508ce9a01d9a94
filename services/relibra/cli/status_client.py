"""The client of the status service, for verbs that only read."""

import json
import ssl
import urllib.error
import urllib.request
from http.client import BadStatusLine, HTTPException
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import typer

from relibra.cli.completion import complete_watched_job
from relibra.cli.known_jobs import unknown_job
from relibra.errors import ERRORS, InvalidInput, RelibraError, Unavailable, UnknownJob
from relibra.wire.credentials import Credentials

StatusUrl = Annotated[str, typer.Option("--url", envvar="RELIBRA_STATUS_URL", help="URL of the status service.")]
DEFAULT_URL = "http://127.0.0.1:7421"
JobId = Annotated[str, typer.Argument(help="Id of the job.", show_default=False, autocompletion=complete_watched_job)]
AttemptNumber = Annotated[
    int | None,
    typer.Option("--attempt", min=1, help="Number of an attempt of the job; the current one by default."),
]
Step = Annotated[int, typer.Argument(min=0, help="Number of the RL step.", show_default=False)]

_TIMEOUT_S = 10.0


class StatusClient:
    """A client of the status service at a URL.

    It sends the token from the environment and trusts the CA from the environment besides those of the system; see
    `Credentials.from_env`.
    """

    def __init__(self, url: str, credentials: Credentials | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        """Check the URL. Each `get` opens a connection of its own.

        Raises:
            InvalidInput: `url` is not an HTTP URL, or a credentials file cannot be read.
        """
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise InvalidInput.of("--url", expected="http://host:port or https://host:port", got=repr(url))
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._credentials = credentials or Credentials.from_env()
        self._tls = _tls(self._credentials) if url.startswith("https:") else None

    def get(self, *path: str | int, **query: str | int | None) -> Any:
        """Return a JSON document.

        Args:
            path: the parts of the path, not escaped.
            query: the query parameters; None leaves a parameter out.

        Raises:
            Unavailable: the service cannot be reached, or the URL is not that of a status service.
            RelibraError: the error that the service returned.
        """
        asked = urlencode({name: value for name, value in query.items() if value is not None})
        place = "/".join(quote(str(part), safe="") for part in path)
        request = urllib.request.Request(f"{self.url}/{place}?{asked}".rstrip("?"))
        for name, value in self._credentials.metadata:
            # Not sent to other hosts on a redirect: the token is for this service only.
            request.add_unredirected_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s, context=self._tls) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise _problem(error, self.url) from error
        except (OSError, ValueError, HTTPException) as error:
            if (other := _other_protocol(error)) is not None:
                raise Unavailable(f"{self.url} is {other}") from error
            reason = getattr(error, "reason", error)
            raise Unavailable(
                f"no status service responds at {self.url}: {reason}; start one with `relibra up` or `relibra status`, "
                "or name another with --url or RELIBRA_STATUS_URL"
            ) from error

    def get_of_job(self, job_id: str, *path: str | int, **query: str | int | None) -> Any:
        """Return a JSON document about a job; the arguments and errors are those of `get`.

        Raises:
            UnknownJob: the job is not registered; the text lists the jobs that the viewer may see.
        """
        try:
            return self.get("v1", "jobs", job_id, *path, **query)
        except UnknownJob:
            raise unknown_job(job_id, (job["job_id"] for job in self.get("v1", "jobs"))) from None


def _other_protocol(error: Exception) -> str | None:
    """Return which server sent an answer that is not HTTP, and what to do; None if the answer does not tell."""
    begins = str(error.args[0]) if isinstance(error, BadStatusLine) else ""
    if begins[3:4] == "\x04":  # the SETTINGS frame with which every HTTP/2 server begins
        return (
            "the port of a gRPC server, such as a planner (7420 by default). The status service has a port of its own "
            "(7421 by default): name it with --url or RELIBRA_STATUS_URL"
        )
    return None


def _tls(credentials: Credentials) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context()
        if credentials.ca_file is not None:
            context.load_verify_locations(credentials.ca_file)
        if credentials.cert_file is not None:
            context.load_cert_chain(credentials.cert_file, credentials.key_file)
    except OSError as error:
        raise InvalidInput.of("credentials", expected="certificate and key files (PEM)", got=error) from error
    return context


def _problem(answer: urllib.error.HTTPError, url: str) -> RelibraError:
    try:
        problem = json.load(answer)
        return ERRORS.get(problem["title"], RelibraError)(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return Unavailable(
            f"{url} returned {answer.code} {answer.reason}, which a status service never does; is it another service?"
        )
