"""`relibra planner`: the gRPC service, on an existing Redis."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relibra.cli import service

if TYPE_CHECKING:
    from relibra.planner.settings import PlannerSettings


def planner(
    redis_url: service.StoreUrl = None,
    host: service.ListenHost = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the gRPC service: 7420; 0 takes a free one.")
    ] = None,
    metrics_port: service.MetricsPort = None,
    auth: Annotated[str | None, typer.Option(help="none, or required: callers need a token or certificate.")] = None,
    insecure: service.Insecure = None,
    plaintext: service.Plaintext = None,
    ready_file: service.ReadyFile = None,
) -> None:
    """Serve trainers and rollout workers, and plan their steps. Any number of planners may share one Redis.

    Every setting can also come from the environment (`host` as RELIBRA_HOST) or from the table `planner` of the TOML
    file that RELIBRA_CONFIG_FILE names; docs/service.md and docs/limits.md list all settings.
    """
    from relibra.planner.settings import PlannerSettings

    service.start_logging()
    settings = PlannerSettings.load(
        redis_url=redis_url,
        host=host,
        port=port,
        metrics_port=metrics_port,
        auth=auth,
        insecure=insecure,
        plaintext=plaintext,
    )
    asyncio.run(_serve(settings, ready_file))


async def _serve(settings: "PlannerSettings", ready_file: Path | None) -> None:
    from relibra.planner.server import PlannerServer

    stop = service.stop_requested()
    server = PlannerServer(settings)
    service.announce("planner", await server.start(), ready_file)
    await stop.wait()
    await server.stop()
