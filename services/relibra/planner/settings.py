"""The settings of a planner; its table in the configuration file is `[planner]`."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field, NonNegativeInt

from relibra.errors import Unsupported
from relibra.service_settings import ServiceSettings
from relibra.store import StoreLimits


class PlannerSettings(ServiceSettings):
    """All settings of a planner."""

    table: ClassVar = "planner"
    exposes: ClassVar = "change any job"
    encrypting: ClassVar = "set tls_cert_file and tls_key_file"

    port: int = Field(7420, ge=0, le=65535)
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_client_ca_file: Path | None = None
    """If set, callers must show a certificate that this CA signed."""
    trust_domain: str = "relibra"
    """The trust domain of SPIFFE ids, `spiffe://<trust domain>/job/<job id>/<role>`."""

    num_solvers: int = Field(2, ge=1, le=64)
    """How many steps, each of another job, are solved at the same time."""
    num_solver_threads: int | None = Field(None, ge=1, le=1024)
    """How many threads one solve uses; by default as many as the container, or else this process, has whole cores."""
    solve_timeout_s: float = Field(120.0, gt=0)
    """A solve that takes longer is killed and counts as a crash."""
    pack_timeout_s: float = Field(30.0, gt=0)
    """A packing that takes longer is killed and refused; its driver goes on with its own schedule."""
    solver_memory_bytes: int = Field(6 << 30, ge=1 << 26)
    """How much memory the arrays of one solve may take in its process, beside the code and its threads.

    In a container that has no room for it, the default is smaller: see `container_memory`.
    """
    lease_s: float = Field(2.0, ge=0.2)
    """Lease time-to-live; another planner may take over a job afterwards."""

    retained_steps: int = Field(64, ge=2)
    """How many steps of an attempt keep their full data. Older steps leave a summary, as with the next two limits."""
    retained_bytes: int = Field(4 << 30, ge=1)
    """How much the full data of all steps of a job may take in Redis, with their names."""
    retained_s: float = Field(7 * 86_400.0, ge=3600)
    """How old a step may get before its full data expires."""
    max_jobs: int = Field(256, ge=1)
    max_jobs_by_prefix: dict[str, NonNegativeInt] = Field(default_factory=dict)
    """The most jobs whose names begin with a prefix, such as that of a team: `{"red-": 20}`."""
    max_calls_per_job: int = Field(4096, ge=1)
    """Open calls and streams at this planner by callers of one job; all jobs together may have 8192."""
    max_streams_per_job: int = Field(1024, ge=1)
    """Open streams of reports at this planner by callers of one job; beyond it silent ones make room."""
    max_cells: int = Field(1 << 16, ge=1)
    """The largest number of rows times layers of a step."""
    max_open_steps: int = Field(16, ge=1)
    """How many steps of a job may have sequences and no plan yet; as many may have a schedule and no plan."""
    max_step_size_bytes: int = Field(3 << 30, ge=1)
    """How much the sequences and reports of one step may take in Redis, with their names."""
    max_reports_size_bytes: int = Field(256 << 20, ge=1)
    """How much the reports of one step may take in Redis; readers of a step go through all of them."""
    max_sequences: int = Field(1 << 18, ge=1)
    """How many sequences a step may have, reported or scheduled."""
    max_ingest_bytes_per_s: int = Field(64 << 20, ge=1)
    """The speed at which one job may send to one planner; faster senders are slowed down."""

    @property
    def store_limits(self) -> StoreLimits:
        """The limits that the store enforces."""
        return StoreLimits(
            max_step_size_bytes=self.max_step_size_bytes,
            max_reports_size_bytes=self.max_reports_size_bytes,
            max_open_steps=self.max_open_steps,
            max_sequences=self.max_sequences,
        )

    @property
    def has_tls(self) -> bool:
        """Whether the planner has a certificate."""
        return self.tls_cert_file is not None

    def check(self) -> None:
        """Return if the settings agree with each other.

        Raises:
            Unsupported: the network would be served without authentication or TLS, or a TLS file is missing.
        """
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise Unsupported("TLS needs tls_cert_file and tls_key_file together")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise Unsupported("tls_client_ca_file needs tls_cert_file: client certificates travel inside TLS")
        super().check()
