"""The dependencies that endpoints share: the viewer, the job that the viewer may see, and access to the store."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBasic, HTTPBasicCredentials, HTTPBearer

from relibra.errors import Forbidden
from relibra.status.access import EVERYTHING, Access, Viewer
from relibra.status.attempts import AttemptChoice, choose_attempt
from relibra.status.etag import ETagResponses
from relibra.status.hosts import KnownHosts
from relibra.status.live import Live
from relibra.status.problems import PROBLEM_RESPONSES
from relibra.status.reader import Reader
from relibra.status.refusals import Bound, Refusals
from relibra.status.requests import Requests
from relibra.status.ways import Ways
from relibra.store import JobRecord, Store
from relibra.store.keys import MAX_STEP

V1_RESPONSES = {304: {"description": "Not modified: `If-None-Match` names the current `ETag`."}} | PROBLEM_RESPONSES
MAX_INDEX = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The parts of the application."""

    store: Store
    reader: Reader
    tagged: ETagResponses
    access: Access
    live: Live
    requests: Requests
    refusals: Refusals
    ways: Ways
    hosts: KnownHosts | None
    """The names that requests may call the service by; None where callers must authenticate, which says enough."""

    def check_host(self, request: Request) -> None:
        """Return if a request calls the service by a name of its own.

        Raises:
            Forbidden: the name is not known.
        """
        if self.hosts is None:
            return
        try:
            self.hosts.check(request.headers.get("host"))
        except Forbidden as error:
            self.refusals.count(Bound.HOSTS, str(error))
            raise


async def get_context(request: Request) -> Context:
    """Return the context of the application. A coroutine, because FastAPI runs plain functions in a thread."""
    context: Context = request.app.state.context
    return context


App = Annotated[Context, Depends(get_context)]


async def identify(
    context: App,
    request: Request,
    bearer: Annotated[
        HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False, description="A token, for programs."))
    ],
    basic: Annotated[
        HTTPBasicCredentials | None,
        Depends(HTTPBasic(auto_error=False, description="Any user name, and a token as the password, for browsers.")),
    ],
) -> Viewer:
    """Return the viewer that sent the request."""
    context.check_host(request)
    token = bearer.credentials if bearer else basic.password if basic else None
    return await context.access.identify(token)


Watcher = Annotated[Viewer, Depends(identify)]


async def take_turn(context: App, viewer: Watcher, request: Request) -> AsyncIterator[Viewer]:
    """Yield the viewer in its turn, until the answer is sent. All endpoints that show jobs depend on this, but events.

    Without authentication all viewers look alike, so they are told apart by their addresses.
    """
    address = request.client.host if request.client else ""
    async with context.requests.turn(address if viewer is EVERYTHING else viewer.name):
        yield viewer


Looker = Annotated[Viewer, Depends(take_turn)]
JobId = Annotated[str, Path(description="The id the job was registered with.", examples=["qwen3-rl"], max_length=64)]


AttemptNumber = Annotated[
    int | None, Query(description="Number of an attempt of the job; the current one by default.", ge=1, le=MAX_INDEX)
]


async def seen_attempt(context: App, viewer: Looker, job_id: JobId, attempt: AttemptNumber = None) -> AttemptChoice:
    """Return an attempt of a job that the viewer may see. Every endpoint about a job depends on this check."""
    viewer.check(job_id)
    return choose_attempt(job_id, await context.store.list_attempts(job_id), attempt)


Seen = Annotated[AttemptChoice, Depends(seen_attempt)]


async def seen_job(seen: Seen) -> JobRecord:
    """Return the job as the attempt that the viewer looks at registered it."""
    return seen.job


Job = Annotated[JobRecord, Depends(seen_job)]
Step = Annotated[int, Path(description="Number of the RL step.", examples=[12], ge=0, le=MAX_STEP)]
Row = Annotated[int, Path(description="ep_group * num_micro_batches + micro_batch.", examples=[3], ge=0, le=MAX_INDEX)]
Layer = Annotated[int, Path(description="Counts MoE layers only.", examples=[12], ge=0, le=MAX_INDEX)]
Limit = Annotated[int, Query(description="Largest number of steps to return.", ge=1, le=1000)]
Before = Annotated[int | None, Query(description="Return only steps below this one, for paging.", ge=0, le=MAX_STEP)]
