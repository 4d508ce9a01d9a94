"""The HTML pages, complete without scripts; `static/` adds charts and live updates."""

import functools
import gzip
import hashlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from relibra import charting
from relibra.errors import Corrupt, Unsupported
from relibra.status.attempts import AttemptChoice
from relibra.status.context import MAX_INDEX, App, Before, Layer, Looker, Row, Seen, Step
from relibra.status.explain import explain
from relibra.status.health import JobState
from relibra.status.loads import Cell
from relibra.status.overview import Order, arrange, count_states, fold
from relibra.status.page import page
from relibra.status.problems import Problem
from relibra.status.queue import queue_of
from relibra.status.runbook import runbook_html
from relibra.status.savings import TokenTime, add_up
from relibra.status.step_figures import history_point
from relibra.status.step_times import compare_step_times
from relibra.store import Store

STATIC = Path(__file__).parent / "static"
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_STEPS_PER_PAGE = 50
_NUM_TIMED = 200
"""Steps whose times are compared: the newest, and as many from the whole of the attempt."""
_NUM_NAMED = 10
"""The number of rows in tables of the worst cells and the most replicated experts."""
_YEAR_S = 31_536_000


@pages.get("/")
async def overview(
    app: App,
    viewer: Looker,
    request: Request,
    state: Annotated[JobState | Literal[""], Query()] = "",
    search: Annotated[str, Query(max_length=64)] = "",
    sort: Annotated[Order, Query()] = Order.STATE,
) -> Response:
    """All jobs, those in trouble first and those that wait last, or some of them in another order."""
    glances, broken = await app.reader.glances(viewer)
    asked = {"state": state, "search": search, "sort": sort}
    listed, folded = arrange(glances, state or None, search, sort), dict[JobState, int]()
    if not state and not search:
        listed, folded = fold(listed)
    shown: dict[str, Any] = {"asked": asked, "orders": list(Order), "counts": count_states(glances), "broken": broken}
    shown["queue"] = queue_of(glances)
    shown["saved"] = add_up(glance.savings for glance in glances)
    shown["warnings"] = [warning async for warning in _warnings(app.store)]
    return page(request, "jobs.html", glances=listed, folded=folded, **shown)


async def _warnings(store: Store) -> AsyncIterator[tuple[str, str]]:
    """Yield what people must know of Redis, each with the alert whose section says what to do."""
    try:
        if weakness := await store.check_settings():
            yield weakness, "RelibraRedisForgets"
    except Unsupported as error:
        yield str(error), "RelibraRedisUnfit"
    try:
        if loss := await store.last_loss():
            lost, at = loss
            noticed = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
            yield f"Redis lost {lost}; a planner noticed it at {noticed}", "RelibraRedisLostData"
    except Corrupt as error:
        yield f"Redis may have lost data: {error}", "RelibraRedisLostData"


@pages.get("/jobs/{job_id}")
async def show_job(app: App, seen: Seen, request: Request, before: Before = None) -> Response:
    """One attempt of a job over its steps. Without `attempt` in the URL, the page follows the current attempt."""
    job = seen.job
    steps = await app.reader.summaries(job, limit=_STEPS_PER_PAGE + 1, before=before)
    glance = await app.reader.glance(seen)
    attempts = await app.reader.attempts(seen.attempts)
    points = [history_point(step, TokenTime.of(job)) for step in steps[:_STEPS_PER_PAGE]]
    shown: dict[str, Any] = {"points": points, "before": before, "has_older": len(steps) > _STEPS_PER_PAGE}
    shown["ways"] = await app.ways.say(glance)
    shown["times"] = compare_step_times(await app.reader.sample(job, _NUM_TIMED))
    return page(request, "job.html", seen=seen, glance=glance, attempts=attempts, **shown)


@pages.get("/jobs/{job_id}/steps/{step}")
async def show_step(app: App, seen: Seen, request: Request, step: Step) -> Response:
    """One step: its plan, the reasons for it, and what the ranks did."""
    job = seen.job
    if not _is_permanent(request):
        return _redirect_to_attempt(request, seen)
    shown_step = await app.reader.step(job, step)
    if shown_step.expired is not None:
        return page(request, "expired.html", seen=seen, step=shown_step)
    executed = await app.reader.find_executions(job, step)
    applied = await app.reader.applied_plan(job, shown_step, executed)
    explanation = explain(shown_step, job.cluster, executed, applied, is_over=seen.is_over)
    shown: dict[str, Any] = {"seen": seen, "step": shown_step, "executed": executed, "applied": applied}
    shown["explanation"] = explanation
    if (plan := shown_step.plan) is not None:
        figures = await app.reader.figures(job, plan)
        shown |= {"num_rows": figures.plan.num_rows, "num_micro_batches": figures.plan.schedule.num_micro_batches}
        shown["worst"] = await app.reader.off_loop(figures.worst_cells, _NUM_NAMED)
        shown["replicated"] = await app.reader.off_loop(figures.most_replicated, _NUM_NAMED)
        shown["slowest"] = await app.reader.off_loop(figures.slowest_ranks)
    return page(request, "step.html", **shown)


@pages.get("/jobs/{job_id}/steps/{step}/cells")
async def find_cell(
    seen: Seen,
    step: Step,
    row: Annotated[int, Query(ge=0, le=MAX_INDEX)] = 0,
    layer: Annotated[int, Query(ge=0, le=MAX_INDEX)] = 0,
) -> Response:
    """Redirect to a cell by row and layer."""
    path = f"/jobs/{seen.job.job_id}/steps/{step}/cells/{row}/{layer}"
    return RedirectResponse(f"{path}?attempt={seen.chosen.number}")


@pages.get("/jobs/{job_id}/steps/{step}/cells/{row}/{layer}")
async def show_cell(app: App, seen: Seen, request: Request, step: Step, row: Row, layer: Layer) -> Response:
    """One micro-batch and layer: the load of every rank, at home and in replicas."""
    if not _is_permanent(request):
        return _redirect_to_attempt(request, seen)
    plan = await app.reader.find_plan(seen.job, step)
    figures = await app.reader.figures(seen.job, plan)
    cell = await app.reader.off_loop(Cell.of, figures, row, layer)
    return page(request, "cell.html", seen=seen, step=step, plan=plan, cell=cell, num_rows=figures.plan.num_rows)


@pages.get("/docs")
async def describe(request: Request) -> Response:
    """The JSON API, rendered from its OpenAPI schema. FastAPI's own page would load scripts from other hosts."""
    return page(request, "docs.html", api=request.app.openapi())


@pages.get("/runbook")
async def show_runbook(request: Request) -> Response:
    """What to do about a state or an alert; the links of alerts lead here."""
    return page(request, "runbook.html", content=runbook_html())


def plotly(request: Request) -> Response:
    """The charting library. It is compressed once, in a thread, because that takes long."""
    content, tag = _plotly()
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    headers = {"ETag": tag, "Cache-Control": f"public, max-age={_YEAR_S}, immutable", "Content-Encoding": "gzip"}
    return Response(content, headers=headers, media_type="text/javascript")


def show_problem(request: Request, problem: Problem) -> Response:
    """Return the HTML page of an error."""
    return page(request, "problem.html", status=problem.status, problem=problem)


@functools.cache
def _plotly() -> tuple[bytes, str]:
    content = gzip.compress(charting.library(), mtime=0)
    return content, f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'


def _is_permanent(request: Request) -> bool:
    return "attempt" in request.query_params


def _redirect_to_attempt(request: Request, seen: AttemptChoice) -> Response:
    """Redirect to the URL that names the attempt, so that an open page and a link stay right after a restart."""
    here = request.url.replace(scheme="", netloc="")
    return RedirectResponse(str(here.include_query_params(attempt=seen.chosen.number)))
