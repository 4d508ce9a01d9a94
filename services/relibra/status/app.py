"""The endpoints."""

import asyncio
from typing import Annotated

from fastapi import FastAPI, Path, Query, Response

from relibra.errors import NotFound
from relibra.planning.plan_file import plan_from_bytes
from relibra.status import metrics
from relibra.status.models import Health, JobView, PlanView, ReportView, StepView
from relibra.status.problems import PROBLEM_RESPONSES, install_problem_handlers
from relibra.store import Store

_JobId = Annotated[str, Path(description="The id the job was registered with.", examples=["qwen3-rl"], max_length=64)]
_Step = Annotated[int, Path(description="Number of the RL step.", examples=[12], ge=0, le=1 << 53)]
_Limit = Annotated[int, Query(description="How many steps at most.", ge=1, le=1000)]

MAX_NUM_STEPS = 100


def create_app(store: Store) -> FastAPI:
    """Return the application that shows what is in `store`; it never writes."""
    app = FastAPI(
        title="relibra",
        summary="What the balancing control plane plans, and why.",
        responses=PROBLEM_RESPONSES,
    )
    install_problem_handlers(app)

    @app.get("/healthz", tags=["health"])
    async def healthz() -> Health:
        """Whether the process answers; says nothing of Redis."""
        return Health()

    @app.get("/readyz", tags=["health"])
    async def readyz() -> Health:
        """Whether Redis answers; 503 with the reason where it does not."""
        await store.ping()
        return Health()

    @app.get("/metrics", tags=["health"], response_class=Response)
    async def prometheus() -> Response:
        """Metrics in the Prometheus text format."""
        return Response(metrics.render(await metrics.read_figures(store)), media_type=metrics.CONTENT_TYPE)

    @app.get("/v1/jobs", tags=["jobs"])
    async def list_jobs() -> list[JobView]:
        """All registered jobs, by id."""
        return [JobView.of(job) for job in await store.list_jobs()]

    @app.get("/v1/jobs/{job_id}", tags=["jobs"])
    async def get_job(job_id: _JobId) -> JobView:
        """One job."""
        return JobView.of(await store.get_job(job_id))

    @app.get("/v1/jobs/{job_id}/steps", tags=["steps"])
    async def list_steps(job_id: _JobId, limit: _Limit = MAX_NUM_STEPS) -> list[StepView]:
        """The last steps of a job, newest first."""
        job = await store.get_job(job_id)
        return [StepView.of(step) for step in await store.list_steps(job.job_id, limit=limit)]

    @app.get("/v1/jobs/{job_id}/steps/{step}/plan", tags=["steps"])
    async def get_plan(job_id: _JobId, step: _Step) -> PlanView:
        """The plan of a step: where experts live, how balanced every cell is, and why."""
        job = await store.get_job(job_id)
        record = await store.get_step(job.job_id, step)
        if record.plan is None:
            raise NotFound(f"step {step} of job {job_id!r} has no plan; it is {record.failure or record.state}")
        plan = await asyncio.to_thread(plan_from_bytes, await store.get_plan_file(job.job_id, step))
        return PlanView.show(record.plan, plan)

    @app.get("/v1/jobs/{job_id}/steps/{step}/reports", tags=["steps"])
    async def list_reports(job_id: _JobId, step: _Step) -> list[ReportView]:
        """What the ranks did in a step, by phase, EP group and rank."""
        job = await store.get_job(job_id)
        return [ReportView.of(report) for report in await store.get_reports(job.job_id, step)]

    return app
