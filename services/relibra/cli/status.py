"""`relibra status`: the HTTP service, on a Redis that runs already."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from relibra.cli.service import Host, ReadyFile, RedisUrl, start_logging, stop_requested, write_ready_file


def status(
    redis_url: RedisUrl,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the HTTP service; 0 takes a free one.")] = 7421,
    ready_file: ReadyFile = None,
) -> None:
    """Show jobs, steps and plans over HTTP: JSON, metrics, and a description at /docs. Only reads."""
    start_logging()
    asyncio.run(_serve(redis_url, host, port, ready_file))


async def _serve(redis_url: str, host: str, port: int, ready_file: Path | None) -> None:
    from relibra.status.serve import StatusServer

    stop = stop_requested()
    server = StatusServer(redis_url, host=host, port=port)
    await server.start()
    typer.echo(f"status   {server.url}")
    write_ready_file(ready_file, {"status": server.url, "pids": {"status": os.getpid()}})
    serving = asyncio.create_task(server.run())
    await stop.wait()
    server.stop()
    await serving
