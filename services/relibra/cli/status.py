"""`relibra status`: the HTTP service, on a Redis that runs already."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relibra.cli.service import ReadyFile, start_logging, stop_requested, write_ready_file

if TYPE_CHECKING:
    from relibra.status.settings import StatusSettings


def status(
    redis_url: Annotated[str | None, typer.Option(help="redis://, rediss:// or unix:// URL of the store.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 if not given.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the HTTP service: 7421; 0 takes a free one.")
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Another port for Prometheus, of all jobs and without a token."),
    ] = None,
    auth: Annotated[str | None, typer.Option(help="none, or required: viewers show a token.")] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Serve the network without authentication.")
    ] = None,
    ready_file: ReadyFile = None,
) -> None:
    """Show jobs, steps and plans over HTTP: pages, JSON, metrics. Only reads.

    Every setting can come from the environment as RELIBRA_<NAME>, or from the table [status] of the TOML file that
    RELIBRA_CONFIG_FILE names; docs/status.md lists them.
    """
    from relibra.status.settings import StatusSettings

    start_logging()
    settings = StatusSettings.load(
        redis_url=redis_url, host=host, port=port, metrics_port=metrics_port, auth=auth, insecure=insecure
    )
    asyncio.run(_serve(settings, ready_file))


async def _serve(settings: "StatusSettings", ready_file: Path | None) -> None:
    from relibra.status.serve import StatusServer

    stop = stop_requested()
    server = StatusServer(settings)
    await server.start()
    typer.echo(f"status   {server.url}")
    write_ready_file(ready_file, {"status": server.url, "pids": {"status": os.getpid()}})
    serving = asyncio.create_task(server.run())
    await stop.wait()
    server.stop()
    await serving
