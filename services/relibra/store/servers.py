"""What the servers of a Redis tell of their memory, their files and their clocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The worst of several servers."""

    max_memory_bytes: int | None
    """The memory at which Redis refuses writes; None if it has no such limit."""
    memory_share: float
    """How much of that memory is in use; without a limit, how much of the machine's."""
    fails_to_rewrite: bool
    """Whether the last rewrite of an append-only file failed, so that it grows until the disk is full."""
    clock_offset_s: float
    """How much the clock of this process is ahead of that of Redis; below 0 if it is behind."""

    @classmethod
    def of(cls, infos: Sequence[Mapping[str, Any]]) -> Self:
        """Sum up what servers answered to INFO, at the Unix time `asked_at`; what one does not tell counts as well."""
        limits_bytes = [limit for info in infos if (limit := int(info.get("maxmemory", 0)))]
        return cls(
            # All data of a job lies on one server.
            max_memory_bytes=min(limits_bytes, default=None),
            memory_share=max((_memory_share(info) for info in infos), default=0.0),
            fails_to_rewrite=any(info.get("aof_last_bgrewrite_status", "ok") != "ok" for info in infos),
            clock_offset_s=max(
                (info["asked_at"] - info["server_time_usec"] / 1e6 for info in infos if "server_time_usec" in info),
                key=abs,
                default=0.0,
            ),
        )


def _memory_share(info: Mapping[str, Any]) -> float:
    limit = info.get("maxmemory") or info.get("total_system_memory")
    return info.get("used_memory", 0) / limit if limit else 0.0
