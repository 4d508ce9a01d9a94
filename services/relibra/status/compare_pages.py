"""The page that shows two jobs, or two steps of one or two jobs, side by side."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BeforeValidator, Field

from relibra.errors import NotFound
from relibra.planning import Cluster
from relibra.status.attempts import AttemptChoice, choose_attempt
from relibra.status.comparison import Side, compare, compare_savings
from relibra.status.context import MAX_INDEX, App, Context, Looker
from relibra.status.glance import JobGlance
from relibra.status.loads import Diff
from relibra.status.page import page
from relibra.status.savings import TokenTime
from relibra.store import JobRecord, StepSummary
from relibra.store.keys import MAX_STEP

compare_pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_NUM_STEPS = 100
"""Newest steps of a job that its figures are medians of."""
_NUM_MOVES = 20
"""Moves that the page names; JSON has all."""

# A field of a form that is left empty is sent as an empty text.
_Empty = BeforeValidator(lambda value: value or None)
_Job = Annotated[str, Query(max_length=64)]
_Step = Annotated[Annotated[int, Field(ge=0, le=MAX_STEP)] | None, _Empty, Query()]
_Attempt = Annotated[Annotated[int, Field(ge=1, le=MAX_INDEX)] | None, _Empty, Query()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One side of the page."""

    glance: JobGlance
    step: StepSummary | None
    """The step; None if jobs are compared."""
    figures: Side

    @property
    def choice(self) -> AttemptChoice:
        """The attempt that is shown."""
        return self.glance.choice

    @property
    def job(self) -> JobRecord:
        """The job, as this attempt registered it."""
        return self.glance.job

    @property
    def address(self) -> str:
        """The path of the job or the step, without the attempt."""
        return f"/jobs/{self.job.job_id}" + ("" if self.step is None else f"/steps/{self.step.step}")

    @property
    def name(self) -> str:
        """What tells the side from the other one."""
        attempt = f", attempt {self.choice.chosen.number}" if self.choice.is_over else ""
        return f"{self.job.job_id}{attempt}" + ("" if self.step is None else f", step {self.step.step}")

    @property
    def is_kept(self) -> bool:
        """Whether there is a plan with its loads."""
        return self.step is not None and self.step.plan is not None and self.step.expired is None


@compare_pages.get("/compare")
async def show_comparison(
    app: App,
    viewer: Looker,
    request: Request,
    left: _Job = "",
    right: _Job = "",
    left_step: _Step = None,
    right_step: _Step = None,
    left_attempt: _Attempt = None,
    right_attempt: _Attempt = None,
) -> Response:
    """Two jobs side by side, or two steps if both steps are given; a form until both sides are chosen."""
    asked = {"left": left, "left_step": left_step, "right": right, "right_step": right_step}
    asked |= {"left_attempt": left_attempt, "right_attempt": right_attempt}
    jobs = list(filter(viewer.may_see, await app.store.job_ids()))
    shown: dict[str, Any] = {"asked": asked, "jobs": jobs, "sides": None, "moves": None, "num_moves": _NUM_MOVES}
    is_whole = (left_step is None) == (right_step is None)
    if left and right and is_whole:
        choices = [
            await _choose(app, viewer, left, left_attempt),
            await _choose(app, viewer, right, right_attempt),
        ]
        sides = [await _side(app, choice, step) for choice, step in zip(choices, (left_step, right_step), strict=True)]
        shown["sides"] = sides
        shown["rows"] = compare(sides[0].figures, sides[1].figures)
        if left_step is None:
            shown["rows"].insert(0, compare_savings(sides[0].glance.savings, sides[1].glance.savings))
        elif all(side.is_kept for side in sides):
            shown["moves"] = await _moves(app, sides[0], sides[1])
    return page(request, "compare.html", **shown)


async def _choose(app: Context, viewer: Looker, job_id: str, attempt: int | None) -> AttemptChoice:
    viewer.check(job_id)
    return choose_attempt(job_id, await app.store.list_attempts(job_id), attempt)


async def _side(app: Context, choice: AttemptChoice, step: int | None) -> Shown:
    newest = await app.reader.summaries(choice.job, limit=1 if step is not None else _NUM_STEPS, before=_above(step))
    if step is not None and (not newest or newest[0].step != step):
        await app.store.find_step(choice.job, step)  # raises with the reason
        raise NotFound(f"job {choice.job.job_id!r} has no step {step}")
    return Shown(
        glance=await app.reader.glance(choice),
        step=None if step is None else newest[0],
        figures=Side(steps=newest, time=TokenTime.of(choice.job)),
    )


def _above(step: int | None) -> int | None:
    return None if step is None else step + 1


async def _moves(app: Context, left: Shown, right: Shown) -> Diff | None:
    """Return which experts are elsewhere on the right; None if the two placements are not of one shape."""
    assert left.step is not None
    assert right.step is not None
    from_LE = await app.store.get_placement(left.job, left.step.step)
    to_LE = await app.store.get_placement(right.job, right.step.step)
    if from_LE.shape != to_LE.shape or _ranks(left.job.cluster) != _ranks(right.job.cluster):
        return None
    return Diff.of((left.step.step, right.step.step), from_LE, to_LE, right.job.cluster)


def _ranks(cluster: Cluster) -> tuple[int, int]:
    return cluster.num_nodes, cluster.gpus_per_node
