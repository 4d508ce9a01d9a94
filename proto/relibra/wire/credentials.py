"""The credentials of a client: a bearer token, a certificate, both or none."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from relibra.errors import InvalidInput

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How a client authenticates and which planner it trusts. By default nothing is set: plain text on one machine."""

    token: str | None = field(default=None, repr=False)
    """The token that `relibra tokens create` printed."""
    ca_file: Path | None = None
    """The CA certificates (PEM) that may sign the planner's certificate; setting them turns TLS on."""
    cert_file: Path | None = None
    """The client's own certificate (PEM), if the planner asks for one."""
    key_file: Path | None = None

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ) -> "Credentials":
        """Read RELIBRA_TOKEN or RELIBRA_TOKEN_FILE, and RELIBRA_TLS_{CA,CERT,KEY}_FILE.

        Raises:
            InvalidInput: the token file cannot be read.
        """
        token = environment.get("RELIBRA_TOKEN")
        if token is None and (token_file := environment.get("RELIBRA_TOKEN_FILE")):
            token = _read("RELIBRA_TOKEN_FILE", Path(token_file)).decode().strip()

        def path(name: str) -> Path | None:
            value = environment.get(f"RELIBRA_TLS_{name}_FILE")
            return Path(value) if value else None

        return cls(token=token, ca_file=path("CA"), cert_file=path("CERT"), key_file=path("KEY"))

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata that every call carries."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def to_grpc(self) -> "grpc.ChannelCredentials | None":
        """Return the TLS credentials, or None for plain text.

        Raises:
            InvalidInput: a file cannot be read, or a certificate comes without its key or without a CA.
        """
        if (self.cert_file is None) != (self.key_file is None):
            raise InvalidInput.of("credentials", expected="a certificate and its key together", got="one of them")
        if self.ca_file is None:
            if self.cert_file is not None:
                raise InvalidInput.of("credentials.ca_file", expected="the CA of the planner's certificate", got="none")
            return None
        import grpc  # clients of the status service use no gRPC and start faster without it

        return grpc.ssl_channel_credentials(
            root_certificates=_read("ca_file", self.ca_file),
            private_key=None if self.key_file is None else _read("key_file", self.key_file),
            certificate_chain=None if self.cert_file is None else _read("cert_file", self.cert_file),
        )


def _read(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput.of(field, expected="a readable file", got=error) from error
