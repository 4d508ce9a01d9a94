"""The settings that planner and status service share, and where settings come from.

Arguments override the environment (`RELIBRA_<NAME>`), and the environment overrides the TOML file that
`RELIBRA_CONFIG_FILE` names. Each service reads the table of its own name.
"""

import ipaddress
import logging
import os
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, field_serializer
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from relibra.errors import InvalidInput, Unsupported
from relibra.store.address import with_password_of, without_password

_FILE_VARIABLE = "RELIBRA_CONFIG_FILE"


class ServiceSettings(BaseSettings):
    """The settings of a service. Every setting but `redis_url` has a default that suits one machine."""

    model_config = SettingsConfigDict(env_prefix="RELIBRA_", frozen=True, extra="forbid")

    table: ClassVar[str]
    """The name of the service, and of its table in the file."""
    exposes: ClassVar[str]
    """What anybody who can connect could do if the service did not authenticate callers; for messages."""
    encrypting: ClassVar[str]
    """How connections of the service become encrypted; for messages."""

    redis_url: str = Field(repr=False)
    """The URL of Redis, a Cluster or Sentinels (see `relibra.store.address`); a password in it is never printed."""
    redis_password_file: Path | None = None
    """A file with the password for `redis_url`, which then has none."""
    host: str = "127.0.0.1"
    metrics_port: int | None = Field(None, ge=0, le=65535)
    """The port where Prometheus scrapes without a token; if it is unset, nothing listens."""

    auth: Literal["none", "required"] = "none"
    """Whether callers must authenticate with a token or, at the planner, a certificate with a SPIFFE id."""
    insecure: bool = False
    """Allows a service without authentication to listen beyond loopback, which is refused otherwise."""
    plaintext: bool = False
    """Allows tokens to travel unencrypted beyond loopback, because something in front of the service encrypts."""

    @classmethod
    def load(cls, **arguments: Any) -> Self:
        """Return the settings in effect; an argument of None counts as not given.

        Raises:
            InvalidInput: a value is malformed, or the file cannot be read.
            Unsupported: two settings contradict each other, or the network would be served without authentication or
                TLS.
        """
        try:
            settings = cls(**{name: value for name, value in arguments.items() if value is not None})
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
            raise InvalidInput(f"settings: {'; '.join(faults)}") from None
        except SettingsError as error:
            raise InvalidInput(
                f"settings: {error}: expected JSON there, as in RELIBRA_MAX_JOBS_BY_PREFIX='{{\"red-\": 20}}'"
            ) from error
        except (OSError, ValueError) as error:
            raise InvalidInput.of(_FILE_VARIABLE, expected="a TOML file", got=error) from error
        settings.check()
        if settings.redis_password_file is not None:
            url = with_password_of(settings.redis_password_file, settings.redis_url)
            settings = settings.model_copy(update={"redis_url": url})
        return settings

    def check(self) -> None:
        """Return if the settings agree with each other.

        Raises:
            Unsupported: two settings contradict each other, or the network would be served without authentication or
                TLS.
        """
        if self.auth == "none" and not self.is_loopback and not self.insecure:
            raise Unsupported(
                f"host {self.host} serves the network and auth is none, so anybody could {self.exposes}; set auth to "
                "required and create tokens with `relibra tokens create`, or set insecure on a network that you trust"
            )

        if self.auth == "required" and not self.is_loopback and not self.has_tls and not self.plaintext:
            raise Unsupported(
                f"host {self.host} serves the network without TLS, so anybody on the way could read the tokens of "
                f"callers; {self.encrypting}, or set plaintext if something else encrypts the connections"
            )

    @property
    def has_tls(self) -> bool:
        """Whether the service itself encrypts its connections."""
        return False

    @property
    def changes(self) -> str:
        """The settings that differ from their defaults, for people."""
        changed = self.model_dump(mode="json", exclude_defaults=True)
        return ", ".join(f"{name}={value}" for name, value in changed.items()) or "default settings"

    def log_openness(self, logger: logging.Logger, risk: str) -> None:
        """Log that a service asks nobody for a token: a warning where other machines can connect."""
        if self.is_loopback:
            logger.info("no authentication: %s; only this machine can connect", risk)
        else:
            logger.warning("no authentication: %s; THE WHOLE NETWORK CAN CONNECT", risk)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @field_serializer("redis_url")
    def _mask(self, url: str) -> str:
        return without_password(url)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources in order: arguments, environment, file."""
        path = os.environ.get(_FILE_VARIABLE)
        if path is None:
            return init_settings, env_settings
        if not Path(path).is_file():
            raise FileNotFoundError(f"no file {path}")
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, Path(path), (cls.table,))
