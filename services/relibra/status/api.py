"""The JSON endpoints of jobs, steps, execution, history and live updates."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from relibra.planning import ExecutionReport, Phase
from relibra.planning.execution import Execution
from relibra.status.attempts import AttemptSteps
from relibra.status.broken_jobs import BrokenJob
from relibra.status.context import MAX_INDEX, V1_RESPONSES, App, Before, Job, Limit, Looker, Seen, Step, Watcher
from relibra.status.explain import Explanation, explain
from relibra.status.glance import JobGlance
from relibra.status.queue import QueueEntry, queue_of
from relibra.status.savings import TokenTime
from relibra.status.step_figures import HISTORY, history_point
from relibra.status.views import view
from relibra.store import StepState, StepSummary

api = APIRouter(prefix="/v1", responses=V1_RESPONSES)


@api.get("/jobs", tags=["jobs"], response_model=view(list[JobGlance]))
async def list_jobs(app: App, viewer: Looker, request: Request) -> Response:
    """All jobs that the caller may see, but for broken ones, by id; at most `max_jobs`, each with its health."""
    glances, _ = await app.reader.glances(viewer)
    return await app.tagged.json(request, lambda: glances)


@api.get("/broken-jobs", tags=["jobs"], response_model=view(list[BrokenJob]))
async def list_broken_jobs(app: App, viewer: Looker, request: Request) -> Response:
    """The jobs that cannot be read, because something else than relibra overwrote one of their keys in Redis."""
    _, broken = await app.reader.glances(viewer)
    return await app.tagged.json(request, lambda: broken)


@api.get("/queue", tags=["jobs"], response_model=view(list[QueueEntry]))
async def list_queue(app: App, viewer: Looker, request: Request) -> Response:
    """What the solvers of all planners work on, and what waits for one: the steps and packings that one may see."""
    glances, _ = await app.reader.glances(viewer)
    return await app.tagged.json(request, lambda: queue_of(glances))


@api.get("/jobs/{job_id}", tags=["jobs"], response_model=view(JobGlance))
async def get_job(app: App, seen: Seen, request: Request) -> Response:
    """One job, its current attempt and its health; or an attempt that is over, and the health of the job at its end."""
    glance = await app.reader.glance(seen)
    return await app.tagged.json(request, lambda: glance)


@api.get("/jobs/{job_id}/attempts", tags=["jobs"], response_model=view(list[AttemptSteps]))
async def list_attempts(app: App, seen: Seen, request: Request) -> Response:
    """The attempts of a job whose data is kept, newest first: each is one launch of its training."""
    attempts = await app.reader.attempts(seen.attempts)
    return await app.tagged.json(request, lambda: attempts)


@api.get("/jobs/{job_id}/steps", tags=["steps"], response_model=view(list[StepSummary]))
async def list_steps(
    app: App,
    job: Job,
    request: Request,
    limit: Limit = 100,
    before: Before = None,
    state: Annotated[StepState | None, Query(description="Only steps in this state.")] = None,
) -> Response:
    """The latest steps of a job, newest first; of expired steps a summary."""
    steps = await app.reader.steps(job, limit=limit, before=before, state=state)
    return await app.tagged.json(request, lambda: steps)


@api.get("/jobs/{job_id}/steps/{step}", tags=["steps"], response_model=view(StepSummary))
async def get_step(app: App, job: Job, request: Request, step: Step) -> Response:
    """The state of a step, or the summary of an expired one. A step that nobody reported is not found."""
    shown = await app.reader.step(job, step)
    return await app.tagged.json(request, lambda: shown)


@api.get("/jobs/{job_id}/steps/{step}/explain", tags=["steps"], response_model=view(Explanation))
async def explain_step(app: App, seen: Seen, request: Request, step: Step) -> Response:
    """Why the step has this placement and these replicas, and why ranks fell back, in sentences."""
    job = seen.job
    record = await app.store.find_step(job, step)
    executed = await app.reader.find_executions(job, step)
    applied = await app.reader.applied_plan(job, record, executed)
    return await app.tagged.json(request, lambda: explain(record, job.cluster, executed, applied, is_over=seen.is_over))


@api.get("/jobs/{job_id}/steps/{step}/execution", tags=["execution"], response_model=view(list[Execution]))
async def get_execution(app: App, job: Job, request: Request, step: Step) -> Response:
    """What the ranks did in a step, by phase: missing ranks, fallbacks with their causes, realised imbalance."""
    await app.store.find_step(job, step)
    executed = await app.reader.find_executions(job, step)
    return await app.tagged.json(request, lambda: executed)


@api.get("/jobs/{job_id}/steps/{step}/reports", tags=["execution"], response_model=view(list[ExecutionReport]))
async def list_reports(
    app: App,
    job: Job,
    request: Request,
    step: Step,
    phase: Annotated[Phase | None, Query(description="Only this phase.")] = None,
    ep_rank: Annotated[int | None, Query(description="Only this rank.", ge=0, le=MAX_INDEX)] = None,
    realised: Annotated[bool, Query(description="Include `realised_load`, which is empty otherwise.")] = False,
) -> Response:
    """What each rank reported about a step, by phase, EP group and rank."""
    await app.store.find_step(job, step)
    reports = await app.store.get_reports(job, step, phase=phase, ep_rank=ep_rank, with_loads=realised)
    return await app.tagged.json(request, lambda: reports)


@api.get("/jobs/{job_id}/history", tags=["history"], response_model=HISTORY)
async def get_history(
    app: App,
    job: Job,
    request: Request,
    limit: Limit = 100,
    before: Before = None,
    points: Annotated[
        int | None,
        Query(
            description="Cover all steps of the attempt instead, from its first: the steps that are kept in full, and "
            "this number of expired ones, evenly spaced.",
            ge=2,
            le=1000,
        ),
    ] = None,
) -> Response:
    """Planned and realised imbalance, waits and fallbacks over the latest steps, oldest first, expired ones too."""
    if points is None:
        steps = await app.reader.summaries(job, limit=limit, before=before)
    else:
        steps = await app.reader.sample(job, points)
    return await app.tagged.json(request, lambda: [history_point(step, TokenTime.of(job)) for step in reversed(steps)])


@api.get(
    "/events",
    tags=["live"],
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Server-sent events."}},
)
async def watch(
    app: App,
    viewer: Watcher,
    job_id: Annotated[str | None, Query(description="Only this job.", max_length=64)] = None,
) -> StreamingResponse:
    """A stream of events: `change` names jobs that changed, `heard` when they were heard, `store` the state of Redis.

    The stream ends after ten minutes with the event `end`; reconnect then.
    """
    if job_id is not None:
        viewer.check(job_id)
    events = app.live.watch(viewer, job_id)
    # The first event takes a place, or raises while the answer can still be a refusal.
    events = _resume(await anext(events), events)
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _resume(first: str, events: AsyncGenerator[str]) -> AsyncGenerator[str]:
    async with aclosing(events):
        yield first
        async for event in events:
            yield event
