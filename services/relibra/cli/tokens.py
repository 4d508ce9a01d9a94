"""`relibra tokens`: create, list and revoke access tokens."""

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from relibra.cli.output import AsJson, open_console, print_json, print_rows
from relibra.cli.service import RedisUrl
from relibra.errors import Corrupt, InvalidInput
from relibra.store import ALL_JOBS, Role, Store, TokenRecord
from relibra.wire.job_id import check_job_id

app = typer.Typer(help="Create, list and revoke tokens.", no_args_is_help=True)


@app.command()
def create(
    redis_url: RedisUrl,
    role: Annotated[
        Role,
        typer.Option(
            help="What the holder may do: report routing (rollout), train, look (viewer), or all of it (admin)."
        ),
    ],
    job: Annotated[str | None, typer.Option(help="Job that the token is for.")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Make the token for all jobs whose names begin so, such as those of a team.")
    ] = None,
    all_jobs: Annotated[bool, typer.Option("--all-jobs", help="Make the token for all jobs, also later ones.")] = False,
    days: Annotated[float | None, typer.Option(min=0, help="Days until the token expires; never if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token for one job, for the jobs of a team or for all jobs, and print it. It cannot be shown again."""
    # A token for all jobs reads and changes those of other teams, so it is never what comes of a forgotten option.
    given = [name for name, value in (("--job", job), ("--prefix", prefix), ("--all-jobs", all_jobs or None)) if value]
    if len(given) != 1:
        expected = "one of --job JOB, --prefix PREFIX and --all-jobs"
        raise InvalidInput.of("tokens create", expected=expected, got=" and ".join(given) or "none")
    named = check_job_id(job) if job else check_job_id(prefix) + ALL_JOBS if prefix else ALL_JOBS

    async def make() -> tuple[TokenRecord, str]:
        async with Store.open(redis_url) as store:
            return await store.create_token(named, role, lifetime_s=None if days is None else days * 86_400)

    record, token = asyncio.run(make())
    if as_json:
        print_json(asdict(record) | {"token": token})
        return
    whose = f"job {job}" if job else f"jobs {named}" if prefix else "all jobs"
    typer.echo(f"token {record.token_id} for {whose} with role {role}; set it as RELIBRA_TOKEN:", err=True)
    typer.echo(token)


@app.command("list")
def list_tokens(redis_url: RedisUrl, as_json: AsJson = False) -> None:
    """List all tokens, without their secrets."""

    async def read() -> tuple[list[TokenRecord], dict[str, Corrupt]]:
        async with Store.open(redis_url) as store:
            return await store.list_tokens()

    tokens, damaged = asyncio.run(read())
    for token_id, error in damaged.items():
        typer.echo(f"{error}. Revoke it: relibra tokens revoke {token_id}", err=as_json)
    if as_json:
        print_json([asdict(token) for token in tokens])
        return
    rows = [
        (token.token_id, token.job_id, token.role, _date(token.created_at), _date(token.expires_at)) for token in tokens
    ]
    print_rows(open_console(), ("!token", "!job", "role", "created", "expires"), rows)


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="Id of the token.")], redis_url: RedisUrl, as_json: AsJson = False
) -> None:
    """Revoke a token; services refuse it within seconds."""

    async def forget() -> None:
        async with Store.open(redis_url) as store:
            await store.revoke_token(token_id)

    asyncio.run(forget())
    if as_json:
        print_json({"token_id": token_id, "is_revoked": True})
        return
    typer.echo(f"revoked token {token_id}")


def _date(unix_time_s: float | None) -> str:
    return "never" if unix_time_s is None else datetime.fromtimestamp(unix_time_s, UTC).strftime("%Y-%m-%d %H:%M")
