"""What a planner is told; its table in the file is `[planner]`."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from relibra.errors import Unsupported
from relibra.service_settings import ServiceSettings
from relibra.store import StoreLimits


class PlannerSettings(ServiceSettings):
    """Everything that can be set."""

    table: ClassVar = "planner"
    exposes: ClassVar = "change any job"

    port: int = Field(7420, ge=0, le=65535)
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_client_ca_file: Path | None = None
    """Callers must show a certificate that this CA signed."""
    trust_domain: str = "relibra"
    """Of SPIFFE ids, `spiffe://<trust domain>/job/<job id>/<role>`."""

    num_solvers: int = Field(2, ge=1, le=64)
    """Steps of different jobs that are solved at the same time."""
    solve_timeout_s: float = Field(120.0, gt=0)
    """A solve that takes longer is killed and counted as a crash."""
    lease_s: float = Field(2.0, ge=0.2)
    """A planner that is silent for so long is taken over from."""

    retained_steps: int = Field(64, ge=2)
    """Steps of a job that Redis keeps."""
    max_jobs: int = Field(256, ge=1)
    max_calls_per_job: int = Field(4096, ge=1)
    """Calls and streams under way at this planner by callers of one job; all together may have 8192."""
    max_cells: int = Field(1 << 16, ge=1)
    """Rows times layers of one step."""
    max_open_steps: int = Field(16, ge=1)
    """Steps of a job that have sequences and no plan yet."""
    max_step_size_bytes: int = Field(1 << 30, ge=1)
    """Counts of one step."""
    max_ingest_bytes_per_s: int = Field(64 << 20, ge=1)
    """Of one job, through one planner; faster senders are slowed down."""

    @property
    def store_limits(self) -> StoreLimits:
        """What the store enforces."""
        return StoreLimits(max_step_size_bytes=self.max_step_size_bytes, max_open_steps=self.max_open_steps)

    def check(self) -> None:
        """Return if the settings go together.

        Raises:
            Unsupported: the network would be served without authentication, or a file of TLS is missing.
        """
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise Unsupported("TLS needs tls_cert_file and tls_key_file together")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise Unsupported("tls_client_ca_file needs tls_cert_file: client certificates travel inside TLS")
        super().check()
