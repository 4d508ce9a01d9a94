"""The JSON endpoints of one step's plan. Plans never change, so the plan's id and digest make the `ETag`."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from relibra.planning.plan_file import plan_chunks
from relibra.status.context import MAX_INDEX, V1_RESPONSES, App, Job, Layer, Row, Step
from relibra.status.loads import Cell, HeatMap
from relibra.status.views import view
from relibra.store import PlanRecord

plan_api = APIRouter(prefix="/v1/jobs/{job_id}/steps/{step}", tags=["plans"], responses=V1_RESPONSES)


@plan_api.get("/plan", response_model=view(PlanRecord))
async def get_plan(app: App, job: Job, request: Request, step: Step) -> Response:
    """The plan of a step and the reason for it, without its arrays; its file has them."""
    record = await app.reader.find_plan(job, step)
    return await app.tagged.json(request, lambda: record, tag=_tag(record))


@plan_api.get(
    "/plan.npz",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "The plan file."}},
)
async def download_plan(app: App, job: Job, request: Request, step: Step) -> Response:
    """The plan as the file that `relibra plan` writes (docs/api.md)."""
    record = await app.reader.find_plan(job, step)

    async def chunks() -> Iterator[bytes]:
        return plan_chunks(await app.reader.plan(job, record), record.digest)

    return await app.tagged.file(request, chunks, tag=_tag(record), name=f"{job.job_id}-step-{step}.npz")


@plan_api.get("/heatmap", response_model=view(HeatMap))
async def get_heat_map(
    app: App,
    job: Job,
    request: Request,
    step: Step,
    row: Annotated[
        int | None, Query(description="One row; the sum of all rows by default.", ge=0, le=MAX_INDEX)
    ] = None,
) -> Response:
    """Loads by layer and rank, before and after balancing."""
    record = await app.reader.find_plan(job, step)
    figures = await app.reader.figures(job, record)
    return await app.tagged.json(request, lambda: HeatMap.of(figures, row), tag=_tag(record))


@plan_api.get("/cells/{row}/{layer}", response_model=view(Cell))
async def get_cell(app: App, job: Job, request: Request, step: Step, row: Row, layer: Layer) -> Response:
    """One cell in full: loads of all ranks before and after, home and replicas of all experts, bound and gap."""
    record = await app.reader.find_plan(job, step)
    figures = await app.reader.figures(job, record)
    return await app.tagged.json(request, lambda: Cell.of(figures, row, layer), tag=_tag(record))


def _tag(record: PlanRecord) -> str:
    return f"{record.id}-{record.digest.hex()[:12]}"
