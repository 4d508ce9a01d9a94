"""`relibra status`: the HTTP service, on an existing Redis."""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relibra.cli import service

if TYPE_CHECKING:
    from relibra.status.settings import StatusSettings


def status(
    redis_url: service.StoreUrl = None,
    host: service.ListenHost = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the HTTP service: 7421; 0 takes a free one.")
    ] = None,
    metrics_port: service.MetricsPort = None,
    auth: Annotated[str | None, typer.Option(help="none, or required: viewers need a token.")] = None,
    insecure: service.Insecure = None,
    plaintext: service.Plaintext = None,
    ready_file: service.ReadyFile = None,
) -> None:
    """Serve jobs, steps and plans over HTTP as pages, JSON and metrics. Read-only.

    Every setting can also come from the environment (`host` as RELIBRA_HOST) or from the table `status` of the TOML
    file that RELIBRA_CONFIG_FILE names; docs/status.md lists all settings.
    """
    from relibra.status.settings import StatusSettings

    service.start_logging()
    settings = StatusSettings.load(
        redis_url=redis_url,
        host=host,
        port=port,
        metrics_port=metrics_port,
        auth=auth,
        insecure=insecure,
        plaintext=plaintext,
    )
    asyncio.run(_serve(settings, ready_file))


def _compare_ways(*loads: Any) -> dict[str, float]:
    from relibra.evaluation.ways import compare_ways  # loads numba, which most services never need

    return compare_ways(*loads)


async def _serve(settings: "StatusSettings", ready_file: Path | None) -> None:
    from relibra.status.serve import StatusServer

    stop = service.stop_requested()
    # Pages say where the packages of relibra[planner] are missing.
    server = StatusServer(settings, _compare_ways if find_spec("numba") else None)
    await server.start()
    service.announce("status", server.url, ready_file)
    serving = asyncio.create_task(server.run())
    await stop.wait()
    server.stop()
    await serving
