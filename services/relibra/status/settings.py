"""What the status service is told: arguments before environment (`RELIBRA_<NAME>`) before a file (table `[status]`)."""

import ipaddress
import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from relibra.errors import InvalidInput, Unsupported

_FILE_VARIABLE = "RELIBRA_CONFIG_FILE"


class StatusSettings(BaseSettings):
    """Everything that can be set; each has a default that suits one machine, but for the Redis."""

    model_config = SettingsConfigDict(env_prefix="RELIBRA_", frozen=True, extra="forbid")

    redis_url: str = Field(repr=False)
    """`redis://`, `rediss://` or `unix://`; a password in it is never printed."""
    host: str = "127.0.0.1"
    port: int = Field(7421, ge=0, le=65535)

    auth: Literal["none", "required"] = "none"
    """Whether viewers must show a token."""
    insecure: bool = False
    """Whether to show the network everything without authentication, which is refused otherwise."""

    num_cached_plans: int = Field(8, ge=1)
    """Decoded plans that stay in memory: some 30 MB each for 94 layers x 64 ranks x 32 micro-batches."""
    poll_interval_s: float = Field(1.0, gt=0)
    """How often Redis is asked for news, while anybody watches."""
    max_viewers: int = Field(256, ge=1)
    """Open pages that are told of news."""

    @classmethod
    def load(cls, **arguments: Any) -> Self:
        """Return the settings in effect; arguments that are None were not given.

        Raises:
            InvalidInput: a value is malformed or the file cannot be read.
            Unsupported: the network would be served without authentication.
        """
        try:
            settings = cls(**{name: value for name, value in arguments.items() if value is not None})
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise InvalidInput(f"settings: {'; '.join(faults)}") from None
        except (OSError, ValueError) as error:
            raise InvalidInput.of(_FILE_VARIABLE, expected="a TOML file", got=error) from error
        if settings.auth == "none" and not settings._is_loopback and not settings.insecure:
            raise Unsupported(
                f"host {settings.host} serves the network, and auth is none: anybody could see every job. Set auth to "
                "required and make tokens with `relibra tokens create`, or say insecure on a network you trust"
            )
        return settings

    @property
    def _is_loopback(self) -> bool:
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

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
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, Path(path), ("status",))
