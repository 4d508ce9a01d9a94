"""`relibra jobs`: list and remove registered jobs, and let them go back to earlier steps.

`list` reads from the status service, as all verbs that only read do. The others write, so they need access to Redis.
"""

import asyncio
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from relibra.cli.output import AsJson, print_json
from relibra.cli.service import RedisUrl
from relibra.cli.status_client import DEFAULT_URL, StatusClient, StatusUrl
from relibra.errors import Conflict
from relibra.store import JobRecord, Store
from relibra.store.attempts import clock_time

app = typer.Typer(help="List and remove jobs, and let them go back.", no_args_is_help=True)


@app.command("list")
def list_jobs(url: StatusUrl = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the registered jobs with their health."""
    found = StatusClient(url).get("v1", "jobs")
    if as_json:
        print_json(found)
        return
    table = Table("job", "attempt", "launched by", "epoch", "layers x experts", "nodes x GPUs", "registered", "health")
    for job in found:
        model, cluster = job["model"], job["cluster"]
        table.add_row(
            job["job_id"],
            str(job["attempt"]["number"]),
            job["attempt"]["owner"],
            job["epoch"],
            f"{model['num_layers']} x {model['num_experts']}",
            f"{cluster['num_nodes']} x {cluster['gpus_per_node']}",
            f"{job['registered_at'][:19]}Z",
            job["health"]["verdict"],
        )
    console = Console()
    console.print(table)
    for job in found:
        if job["health"]["verdict"] != "well":
            console.print(f"{job['job_id']}: {job['health']['reason']}", highlight=False, markup=False)
        if job["refused_launch"]:
            console.print(f"{job['job_id']}: {job['refused_launch']['text']}", highlight=False, markup=False)


@app.command()
def remove(job_id: Annotated[str, typer.Argument(help="Id of the job.")], redis_url: RedisUrl) -> None:
    """Remove a job with all its steps and plans. Its agents continue without plans until it is registered again."""

    async def forget() -> None:
        async with Store.open(redis_url) as store:
            await store.remove_job(job_id)

    asyncio.run(forget())
    typer.echo(f"removed job {job_id}")


@app.command()
def rollback(
    job_id: Annotated[str, typer.Argument(help="Id of the job.")],
    step: Annotated[int, typer.Argument(min=0, help="The first step that the training samples again.")],
    redis_url: RedisUrl,
    is_repeated: Annotated[
        bool, typer.Option("--again", help="Go back even if the job went back to this step last time too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let a job go back to a step whose first content stands: that step and all later ones are planned anew.

    A training that loads an older checkpoint calls PlannerClient.rollback instead. Earlier steps stay as they are.
    """

    async def go_back() -> JobRecord:
        async with Store.open(redis_url) as store:
            await store.get_job(job_id)
            current = (await store.list_attempts(job_id))[0]
            if current.rolled_back_to == step and not is_repeated:
                raise Conflict(
                    f"job {job_id!r} went back to step {step} already, at {clock_time(current.began_at)}, in attempt "
                    f"{current.number}; nothing was changed. To discard what was sampled since, add --again"
                )
            return await store.rollback(job_id, current.epoch, step)

    job = asyncio.run(go_back())
    if as_json:
        print_json({"job_id": job_id, "step": step, "attempt": job.number, "epoch": f"{job.epoch:016x}"})
        return
    typer.echo(f"job {job_id} went back to step {step}: attempt {job.number} takes over all earlier steps")
