"""What the status service is told; its table in the file is `[status]`."""

from typing import ClassVar

from pydantic import Field

from relibra.service_settings import ServiceSettings


class StatusSettings(ServiceSettings):
    """Everything that can be set."""

    table: ClassVar = "status"
    exposes: ClassVar = "see every job"

    port: int = Field(7421, ge=0, le=65535)
    num_cached_plans: int = Field(8, ge=1)
    """Decoded plans that stay in memory: some 30 MB each for 94 layers x 64 ranks x 32 micro-batches."""
    poll_interval_s: float = Field(1.0, gt=0)
    """How often Redis is asked for news, while anybody watches."""
    max_viewers: int = Field(256, ge=1)
    """Open pages that are told of news."""
