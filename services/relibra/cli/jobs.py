"""`relibra jobs`: what is registered, and how to be rid of it."""

import asyncio
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from relibra.cli.service import RedisUrl
from relibra.store import JobRecord, Store

app = typer.Typer(help="List and remove jobs.", no_args_is_help=True)


@app.command("list")
def list_jobs(redis_url: RedisUrl) -> None:
    """List all registered jobs."""

    async def read() -> list[tuple[JobRecord, int]]:
        async with Store.open(redis_url) as store:
            return [(job, await store.num_planned_steps(job.job_id)) for job in await store.list_jobs()]

    table = Table("job", "epoch", "layers x experts", "ranks", "planned steps")
    for job, num_planned in asyncio.run(read()):
        shape = f"{job.model.num_layers} x {job.model.num_experts}"
        table.add_row(job.job_id, f"{job.epoch:016x}", shape, str(job.cluster.num_ranks), str(num_planned))
    Console().print(table)


@app.command()
def remove(job_id: Annotated[str, typer.Argument(help="Id of the job.")], redis_url: RedisUrl) -> None:
    """Forget a job with all its steps and plans. Its agents go on without plans until it is registered again."""

    async def forget() -> None:
        async with Store.open(redis_url) as store:
            await store.remove_job(job_id)

    asyncio.run(forget())
    typer.echo(f"job {job_id} is removed")
