"""The planner's certificate, read again when its files change."""

import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path

import grpc

from relibra.errors import InvalidInput
from relibra.planner.serve.certificate_validity import read_validity

logger = logging.getLogger(__name__)


class CertificateFiles:
    """Certificate and key (PEM), and the CA of client certificates if callers must show one.

    The planner looks at the files with every new connection. While new files do not fit together, for example because
    the key is not there yet, the planner goes on with the old ones. Open connections stay as they are.
    """

    def __init__(self, cert_file: Path, key_file: Path, client_ca_file: Path | None) -> None:
        self._cert_file = cert_file
        self._key_file = key_file
        self._client_ca_file = client_ca_file
        self._seen = self._look()

    def to_grpc(self) -> grpc.ServerCredentials:
        """Return credentials that follow the files.

        Raises:
            InvalidInput: a file cannot be read, the key does not belong to the certificate, or the certificate has
                expired or is not valid yet.
        """
        return grpc.dynamic_ssl_server_credentials(
            self._read(),
            self._read_if_changed,  # type: ignore[arg-type]  # None means no change
            require_client_authentication=self._client_ca_file is not None,
        )

    def _read_if_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new content, or None to keep the present one."""
        try:
            seen = self._look()
            if seen == self._seen:
                return None
            content = self._read()
        except InvalidInput as error:
            logger.warning("the certificate in use stays: %s", error)
            return None
        self._seen = seen
        logger.info("certificate read anew from %s", self._cert_file)
        return content

    def _look(self) -> tuple[tuple[int, int], ...]:
        try:
            found = [each.stat() for each in self._files]
        except OSError as error:
            raise InvalidInput.of("TLS file", expected="a readable file", got=error) from error
        return tuple((each.st_mtime_ns, each.st_ino) for each in found)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        try:
            # gRPC accepts any two files here and only refuses connections later.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._cert_file, self._key_file)
            if self._client_ca_file is not None:
                context.load_verify_locations(self._client_ca_file)
            key, cert, *client_ca = (each.read_bytes() for each in self._files)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput.of("TLS files", expected="a certificate (PEM) and its key", got=error) from error
        read_validity(cert, str(self._cert_file)).check(str(self._cert_file), datetime.now(UTC))
        return grpc.ssl_server_certificate_configuration([(key, cert)], *client_ca)

    @property
    def _files(self) -> list[Path]:
        return [self._key_file, self._cert_file, *([self._client_ca_file] if self._client_ca_file else [])]
