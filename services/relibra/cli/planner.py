"""`relibra planner`: the gRPC service, on a Redis that runs already."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relibra.cli.service import ReadyFile, start_logging, stop_requested, write_ready_file

if TYPE_CHECKING:
    from relibra.planner.settings import PlannerSettings


def planner(
    redis_url: Annotated[str | None, typer.Option(help="redis://, rediss:// or unix:// URL of the store.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 if not given.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the gRPC service: 7420; 0 takes a free one.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port for Prometheus; none if not given.")] = None,
    auth: Annotated[str | None, typer.Option(help="none, or required: callers show a token or certificate.")] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Serve the network without authentication.")
    ] = None,
    ready_file: ReadyFile = None,
) -> None:
    """Serve trainers and rollout workers, and plan their steps. Any number may share one Redis.

    Every setting can come from the environment as RELIBRA_<NAME>, or from the table [planner] of the TOML file that
    RELIBRA_CONFIG_FILE names; docs/service.md lists them.
    """
    from relibra.planner.settings import PlannerSettings

    start_logging()
    settings = PlannerSettings.load(
        redis_url=redis_url, host=host, port=port, metrics_port=metrics_port, auth=auth, insecure=insecure
    )
    asyncio.run(_serve(settings, ready_file))


async def _serve(settings: "PlannerSettings", ready_file: Path | None) -> None:
    from relibra.planner.server import PlannerServer

    stop = stop_requested()
    server = PlannerServer(settings)
    address = await server.start()
    typer.echo(f"planner  {address}")
    write_ready_file(ready_file, {"planner": address, "pids": {"planner": os.getpid()}})
    await stop.wait()
    await server.stop()
