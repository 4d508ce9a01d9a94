"""The FastAPI application of the status service."""

import logging
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relibra.status import metrics
from relibra.status.access import EVERYTHING, Access
from relibra.status.api import api
from relibra.status.context import App, Context, Looker
from relibra.status.etag import ETagResponses
from relibra.status.hosts import KnownHosts
from relibra.status.live import Live
from relibra.status.pages import STATIC, pages, plotly, show_problem
from relibra.status.plan_api import plan_api
from relibra.status.problems import PROBLEM_RESPONSES, install_problem_handlers
from relibra.status.reader import Reader
from relibra.status.refusals import Refusals
from relibra.status.requests import Requests
from relibra.status.settings import StatusSettings
from relibra.status.ways import CompareWays, Ways
from relibra.store import Store

logger = logging.getLogger(__name__)

_TAGS = [
    {"name": "jobs", "description": "Registered jobs and their health."},
    {"name": "steps", "description": "The state of each step, and why it was planned as it was."},
    {"name": "plans", "description": "Published plans; they never change."},
    {"name": "execution", "description": "What the trainer ranks did."},
    {"name": "history", "description": "Jobs over many steps."},
    {"name": "live", "description": "Live updates as server-sent events."},
    {"name": "health", "description": "For orchestrators and Prometheus."},
]
_HEADERS = {
    # Plotly sets style attributes and draws images from data URLs; nothing is loaded from other hosts.
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


def create_app(store: Store, settings: StatusSettings, compare: CompareWays | None = None) -> FastAPI:
    """Return the application that shows the contents of `store`. It never writes to the store.

    Args:
        store: the store.
        settings: the settings of the service.
        compare: computes what ways of balancing would gain jobs that only observe.
    """
    app = FastAPI(
        title="relibra",
        version=version("relibra"),
        summary="What the balancing control plane plans, and why.",
        openapi_tags=_TAGS,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # such a redirect would repeat whatever `Host` the client sent
    )
    reader = Reader(store, num_plans=settings.num_cached_plans)
    refusals = Refusals()
    is_open = settings.auth == "none"
    app.state.context = Context(
        store=store,
        reader=reader,
        tagged=ETagResponses(reader),
        access=Access(store, is_required=not is_open),
        live=Live(
            store,
            poll_interval_s=settings.poll_interval_s,
            max_viewers=settings.max_viewers,
            max_viewers_per_token=settings.max_viewers_per_token,
            refusals=refusals,
        ),
        requests=Requests(refusals, max_per_viewer=settings.max_requests_per_viewer),
        refusals=refusals,
        ways=Ways(reader, compare),
        hosts=KnownHosts.of(settings.host, settings.allowed_hosts) if is_open else None,
    )
    if is_open:
        settings.log_openness(logger, "anyone who can connect to this service can see every job")
    install_problem_handlers(app, show_problem)
    app.add_middleware(_Headers)
    app.include_router(api)
    app.include_router(plan_api)
    app.include_router(pages)
    app.add_api_route("/static/plotly.min.js", plotly, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC))

    @app.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, Literal["ok"]]:
        """Liveness: the process responds. Does not check Redis."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["health"], responses={503: PROBLEM_RESPONSES[503]})
    async def readyz(context: App) -> dict[str, Literal["ok"]]:
        """Readiness: Redis responds. Returns 503 with the reason if it does not."""
        await context.store.ping()
        return {"status": "ok"}

    @app.get(
        "/metrics",
        tags=["health"],
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {}}, "description": "The Prometheus text format."},
            **{status: PROBLEM_RESPONSES[status] for status in (401, 403, 503)},
        },
    )
    async def prometheus(context: App, viewer: Looker) -> Response:
        """Metrics of the jobs that the caller may see, in the Prometheus text format."""
        return await metrics.scrape(context, viewer)

    return app


def create_metrics_app(context: Context, settings: StatusSettings) -> FastAPI:
    """Return the application for `metrics_port`: the metrics of all jobs, without a token, and nothing else.

    Prometheus needs no token here, because a token would expire one night; a network policy keeps other clients out.
    On loopback nothing but the `Host` header keeps out pages of other sites.
    """
    hosts = KnownHosts.of(settings.host, settings.allowed_hosts) if settings.is_loopback else None
    context = replace(context, hosts=hosts)
    app = FastAPI(openapi_url=None)
    install_problem_handlers(app)

    @app.get("/metrics")
    async def prometheus(request: Request) -> Response:
        context.check_host(request)
        return await metrics.scrape(context, EVERYTHING)

    return app


class _Headers:
    """Adds the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added: Any = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, send_with_headers)
