"""The settings of the status service; its table in the configuration file is `[status]`."""

from typing import ClassVar

from pydantic import Field

from relibra.service_settings import ServiceSettings


class StatusSettings(ServiceSettings):
    """All settings of the status service."""

    table: ClassVar = "status"
    exposes: ClassVar = "see every job"
    encrypting: ClassVar = "listen on loopback behind a proxy that speaks TLS"

    port: int = Field(7421, ge=0, le=65535)
    num_cached_plans: int = Field(8, ge=1)
    """The number of decoded plans kept in memory, each about 30 MB for 94 layers x 64 ranks x 32 micro-batches."""
    poll_interval_s: float = Field(1.0, gt=0)
    """The interval at which Redis is polled for changes while pages are open."""
    max_viewers: int = Field(256, ge=1)
    """The largest number of open event streams, one for each open page."""
    max_viewers_per_token: int = Field(64, ge=1)
    """The largest number of open event streams of one token, so that it cannot take them all."""
    max_connections: int = Field(768, ge=1)
    """The largest number of open connections to each port; event streams count. Stay below the limit of open files."""
    head_timeout_s: float = Field(10.0, gt=0)
    """How long a client may take to send the head of a request before the service hangs up."""
    max_requests_per_viewer: int = Field(32, ge=1)
    """The largest number of open requests of one token, or one address without tokens; two are in work at a time."""
    answer_timeout_s: float = Field(30.0, gt=0)
    """How long a client may take for about 64 KiB of an answer before the service hangs up."""
    allowed_hosts: str = ""
    """Further names of the service, between commas, that requests may call it by while `auth` is none; `*` for any."""
