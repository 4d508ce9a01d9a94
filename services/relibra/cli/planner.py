"""`relibra planner`: the gRPC service, on a Redis that runs already."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from relibra.cli.service import Host, ReadyFile, RedisUrl, start_logging, stop_requested, write_ready_file


def planner(
    redis_url: RedisUrl,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the gRPC service; 0 takes a free one.")] = 7420,
    ready_file: ReadyFile = None,
) -> None:
    """Serve trainers and rollout workers, and plan their steps. Any number may share one Redis."""
    start_logging()
    asyncio.run(_serve(redis_url, host, port, ready_file))


async def _serve(redis_url: str, host: str, port: int, ready_file: Path | None) -> None:
    from relibra.planner.server import PlannerServer

    stop = stop_requested()
    server = PlannerServer(redis_url, host=host, port=port)
    address = await server.start()
    typer.echo(f"planner  {address}")
    write_ready_file(ready_file, {"planner": address, "pids": {"planner": os.getpid()}})
    await stop.wait()
    await server.stop()
