"""What a planner is told: arguments before environment (`RELIBRA_<NAME>`) before a file (TOML, table `[planner]`)."""

import ipaddress
import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_serializer
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from relibra.errors import InvalidInput, Unsupported
from relibra.store import StoreLimits
from relibra.store.connection import without_password

_FILE_VARIABLE = "RELIBRA_CONFIG_FILE"


class PlannerSettings(BaseSettings):
    """Everything that can be set; each has a default that suits one machine, but for the Redis."""

    model_config = SettingsConfigDict(env_prefix="RELIBRA_", frozen=True, extra="forbid")

    redis_url: str = Field(repr=False)
    """`redis://`, `rediss://` or `unix://`; a password in it is never printed."""
    host: str = "127.0.0.1"
    port: int = Field(7420, ge=0, le=65535)
    metrics_port: int | None = Field(None, ge=0, le=65535)
    """Where Prometheus scrapes; unset, nothing listens."""

    auth: Literal["none", "required"] = "none"
    """Whether callers must show a token or a certificate with a SPIFFE id."""
    insecure: bool = False
    """Whether to serve the network without authentication, which is refused otherwise."""
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
    max_cells: int = Field(1 << 16, ge=1)
    """Rows times layers of one step."""
    max_open_steps: int = Field(16, ge=1)
    """Steps of a job that have sequences and no plan yet."""
    max_step_size_bytes: int = Field(1 << 30, ge=1)
    """Counts of one step."""
    max_ingest_bytes_per_s: int = Field(64 << 20, ge=1)
    """Of one job, through one planner; faster senders are slowed down."""

    @classmethod
    def load(cls, **arguments: Any) -> Self:
        """Return the settings in effect; arguments that are None were not given.

        Raises:
            InvalidInput: a value is malformed or the file cannot be read.
            Unsupported: the network would be served without authentication, or a file of TLS is missing.
        """
        try:
            settings = cls(**{name: value for name, value in arguments.items() if value is not None})
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise InvalidInput(f"settings: {'; '.join(faults)}") from None
        except (OSError, ValueError) as error:
            raise InvalidInput.of(_FILE_VARIABLE, expected="a TOML file", got=error) from error
        settings._check()
        return settings

    @property
    def store_limits(self) -> StoreLimits:
        """What the store enforces."""
        return StoreLimits(max_step_size_bytes=self.max_step_size_bytes, max_open_steps=self.max_open_steps)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @field_serializer("redis_url")
    def _mask(self, url: str) -> str:
        return without_password(url)

    def _check(self) -> None:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise Unsupported("TLS needs tls_cert_file and tls_key_file together")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise Unsupported("tls_client_ca_file needs tls_cert_file: client certificates travel inside TLS")
        if self.auth == "none" and not self.is_loopback and not self.insecure:
            raise Unsupported(
                f"host {self.host} serves the network, and auth is none: anybody could change any job. Set auth to "
                "required and make tokens with `relibra tokens create`, or say insecure on a network you trust"
            )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources."""
        path = os.environ.get(_FILE_VARIABLE)
        if path is None:
            return init_settings, env_settings
        if not Path(path).is_file():
            raise FileNotFoundError(f"no file {path}")
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, Path(path), ("planner",))
