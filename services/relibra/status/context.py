"""What every endpoint may ask for: who looks, the job they may see, and how to read it."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBasic, HTTPBasicCredentials, HTTPBearer

from relibra.status.access import Access, Viewer
from relibra.status.etag import ETagResponses
from relibra.status.live import Live
from relibra.status.problems import PROBLEM_RESPONSES
from relibra.status.reader import Reader
from relibra.store import JobRecord, Store

V1_RESPONSES = {304: {"description": "The caller has it: `If-None-Match` named its `ETag`."}} | PROBLEM_RESPONSES
MAX_STEP = 1 << 53
MAX_INDEX = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the application is made of."""

    store: Store
    reader: Reader
    tagged: ETagResponses
    access: Access
    live: Live


async def get_context(request: Request) -> Context:
    """Return the context of the application that serves `request`; a coroutine, for a function would cost a thread."""
    context: Context = request.app.state.context
    return context


App = Annotated[Context, Depends(get_context)]


async def identify(
    context: App,
    bearer: Annotated[
        HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False, description="A token, for programs."))
    ],
    basic: Annotated[
        HTTPBasicCredentials | None,
        Depends(HTTPBasic(auto_error=False, description="Any user name, and a token as the password, for browsers.")),
    ],
) -> Viewer:
    """Return who looks."""
    token = bearer.credentials if bearer else basic.password if basic else None
    return await context.access.identify(token)


Looker = Annotated[Viewer, Depends(identify)]
JobId = Annotated[str, Path(description="The id the job was registered with.", examples=["qwen3-rl"], max_length=64)]


async def seen_job(context: App, viewer: Looker, job_id: JobId) -> JobRecord:
    """Return a job the viewer may see: no endpoint about a job comes past this."""
    viewer.check(job_id)
    return await context.store.get_job(job_id)


Job = Annotated[JobRecord, Depends(seen_job)]
Step = Annotated[int, Path(description="Number of the RL step.", examples=[12], ge=0, le=MAX_STEP)]
Row = Annotated[int, Path(description="ep_group * num_micro_batches + micro_batch.", examples=[3], ge=0, le=MAX_INDEX)]
Layer = Annotated[int, Path(description="Counts MoE layers only.", examples=[12], ge=0, le=MAX_INDEX)]
Limit = Annotated[int, Query(description="How many steps at most.", ge=1, le=1000)]
Before = Annotated[int | None, Query(description="Only steps below this one: the next page.", ge=0, le=MAX_STEP)]
