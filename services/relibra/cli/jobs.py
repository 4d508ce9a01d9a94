"""`relibra jobs`: list and remove registered jobs, and let them go back to earlier steps.

`list` reads from the status service, as all verbs that only read do. The others write, so they need access to Redis.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from relibra.cli.output import AsJson, hours_text, open_console, print_json, print_rows
from relibra.cli.service import RedisUrl
from relibra.cli.status_client import DEFAULT_URL, StatusClient, StatusUrl, naming_unknown
from relibra.errors import Conflict

if TYPE_CHECKING:
    from relibra.store import JobRecord

app = typer.Typer(help="List jobs with their health, remove them, and let them go back.", no_args_is_help=True)

_ALIVE_S = 60
"""Drivers and ranks of a job that trains are heard several times in this time."""

_StoredJob = Annotated[str, typer.Argument(help="Id of the job.")]


@app.command("list")
def list_jobs(url: StatusUrl = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the registered jobs with their health."""
    client = StatusClient(url)
    jobs = client.get("v1", "jobs")
    for job in client.get("v1", "broken-jobs"):
        what_to_do = f"What to do: {client.url}{job['runbook']}"
        typer.echo(f"{job['job_id']} cannot be read: {job['reason']}. {what_to_do}", err=as_json)
    if as_json:
        print_json(jobs)
        return
    rows = []
    for job in jobs:
        attempt = job["attempt"]
        model, cluster = attempt["model"], attempt["cluster"]
        rows.append(
            (
                job["job_id"],
                job["health"]["verdict"],
                str(attempt["number"]),
                escape(attempt["owner"]),
                f"{model['num_layers']} x {model['num_experts']}",
                f"{cluster['num_nodes']} x {cluster['gpus_per_node']}",
                f"{attempt['began_at'][:16].replace('T', ' ')} UTC",
            )
        )
    console = open_console()
    if not jobs:
        console.print("No job is registered. The driver of a training registers its job when it starts.")
        return
    headings = ("!job", "health", "attempt", "launched by", "MoE layers x experts", "nodes x GPUs", "registered")
    print_rows(console, headings, rows)
    saved = [job["savings"]["saved_gpu_hours"] for job in jobs]
    if known := [hours for hours in saved if hours is not None]:
        console.print(
            f"GPU-hours saved in {len(known)} of {len(jobs)} jobs: {hours_text(sum(known))}. `relibra show` says what "
            "that rests on."
        )
    for job in jobs:
        if job["health"]["verdict"] not in ("well", "ended"):
            what_to_do = f". What to do: {client.url}{job['runbook']}" if job["runbook"] else ""
            console.print(f"{job['job_id']}: {job['health']['reason']}{what_to_do}", markup=False)
        if job["refused_launch"]:
            console.print(f"{job['job_id']}: {job['refused_launch']['text']}", markup=False)


@app.command()
def remove(
    job_id: _StoredJob,
    redis_url: RedisUrl,
    is_alive_too: Annotated[
        bool, typer.Option("--alive", help="Remove the job even if it may still be training.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a job that has ended, with all its steps and plans. A job heard in the last minute needs --alive.

    A job that is still training then trains without plans until its driver registers it again.
    """

    async def forget() -> None:
        from relibra.store import Store

        async with Store.open(redis_url) as store:
            if not is_alive_too and (silent_s := await store.silent_s(job_id)) < _ALIVE_S:
                raise Conflict(
                    f"job {job_id!r} was heard {silent_s:.0f} s ago, so it may still be training; nothing was removed. "
                    f"Stop it and try again {_ALIVE_S} s later, or let it train unbalanced: add --alive"
                )
            await store.remove_job(job_id)

    with naming_unknown(job_id):
        asyncio.run(forget())
    if as_json:
        print_json({"job_id": job_id, "is_removed": True})
        return
    typer.echo(f"removed job {job_id}")


@app.command()
def rollback(
    job_id: _StoredJob,
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

    async def go_back() -> "JobRecord":
        from relibra.store import Store
        from relibra.store.attempts import clock_time

        async with Store.open(redis_url) as store:
            await store.get_job(job_id)
            current = (await store.list_attempts(job_id))[0]
            if current.rolled_back_to == step and not is_repeated:
                raise Conflict(
                    f"job {job_id!r} went back to step {step} already, at {clock_time(current.began_at)}, in attempt "
                    f"{current.number}; nothing was changed. To discard what was sampled since, add --again"
                )
            return await store.rollback(job_id, current.epoch, step)

    with naming_unknown(job_id):
        job = asyncio.run(go_back())
    if as_json:
        print_json({"job_id": job_id, "step": step, "attempt": job.number, "epoch": f"{job.epoch:016x}"})
        return
    typer.echo(f"job {job_id} went back to step {step}, in attempt {job.number}")
