"""Checks that Redis is configured to keep the data of the planners."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from relibra.cli.checks.finding import Finding, failed, ok, skipped, warning
from relibra.errors import Unavailable
from relibra.store.address import open_redis, without_password
from relibra.store.connection import raises_unavailable
from relibra.store.keys import SCHEMA, SCHEMA_VERSION

_FULL_SHARE = 0.8


def examine(url: str | None) -> list[Finding]:
    """Query the configuration of a Redis without writing to it.

    Raises:
        InvalidInput: `url` is not a Redis URL.
    """
    if url is None:
        return [
            skipped("redis", "no URL given (--redis-url or RELIBRA_REDIS_URL); only planner and status service need it")
        ]
    try:
        info, schema = asyncio.run(_ask(url))
    except Unavailable as error:
        return [
            failed("redis", f"{without_password(url)}: {error}", "start Redis, or correct its address and password")
        ]
    return judge(info, schema)


def judge(info: Mapping[str, Any], schema: int | None) -> list[Finding]:
    """Return the findings about the fields of `INFO` and the stored schema version, which is None if none is stored."""
    findings = [ok("redis", f"responds, version {info.get('redis_version', 'unknown')}")]
    if not info.get("aof_enabled"):
        findings.append(
            failed(
                "redis: persistence",
                "the append-only file is off: acknowledged data is lost if Redis dies",
                "set `appendonly yes`",
            )
        )
    elif info.get("aof_last_write_status", "ok") != "ok":
        findings.append(
            failed("redis: persistence", "the append-only file cannot be written", "free space on its disk")
        )
    else:
        findings.append(ok("redis: persistence", "the append-only file is on"))
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        reason = f"keys, including plans, are evicted when memory is full (maxmemory-policy {policy})"
        findings.append(failed("redis: eviction", reason, "set `maxmemory-policy noeviction`"))
    else:
        findings.append(ok("redis: eviction", "keys are never evicted"))
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if most and used > _FULL_SHARE * most:
        reason = f"{used / 2**20:.0f} of {most / 2**20:.0f} MiB are in use"
        findings.append(
            warning("redis: memory", reason, "raise `maxmemory`, lower RELIBRA_RETAINED_STEPS or remove jobs")
        )
    if schema is not None and schema != SCHEMA_VERSION:
        fix = "upgrade relibra" if schema > SCHEMA_VERSION else "use an empty Redis"
        findings.append(
            failed(
                "redis: schema", f"Redis has schema version {schema}, this relibra reads version {SCHEMA_VERSION}", fix
            )
        )
    return findings


@raises_unavailable
async def _ask(url: str) -> tuple[dict[str, Any], int | None]:
    redis: Any = open_redis(url)
    async with aclosing(redis):
        info = await redis.info()
        stored = await redis.get(SCHEMA)
    # A Cluster returns one result for each node. All nodes are configured alike, so any one will do.
    facts = info if "redis_version" in info else next(iter(info.values()))
    return facts, None if stored is None else int(stored)
