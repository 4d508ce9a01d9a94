"""The planner's certificate, read again when its files change."""

import contextlib
import logging
import ssl
import time
from pathlib import Path

import grpc

from relibra.errors import InvalidInput

logger = logging.getLogger(__name__)

_NO_CHECK_TIME = 0x200000
"""`X509_V_FLAG_NO_CHECK_TIME` of OpenSSL, which Python has no name for."""


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
        self._due_of: tuple[object, float] = (None, 0.0)

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
            stats = [file.stat() for file in self._files]
        except OSError as error:
            raise InvalidInput.of("TLS file", expected="a readable file", got=error) from error
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in stats)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        try:
            # gRPC accepts any two files here and only refuses connections later.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._cert_file, self._key_file)
            if self._client_ca_file is not None:
                context.load_verify_locations(self._client_ca_file)
            check_dates(context, self._cert_file, time.time())
            key, cert, *client_ca = (file.read_bytes() for file in self._files)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput.of("TLS files", expected="a certificate (PEM) and its key", got=error) from error
        return grpc.ssl_server_certificate_configuration([(key, cert)], *client_ca)

    def renewal_due(self) -> float:
        """Return the Unix time by which the certificate file should have been renewed; the last known one if it is bad.

        gRPC asks for a new certificate only when a caller connects.
        """
        with contextlib.suppress(InvalidInput, OSError, ssl.SSLError):
            if (seen := self._look()) != self._due_of[0]:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(self._cert_file, self._key_file)
                self._due_of = seen, check_dates(context, self._cert_file, time.time())
        return self._due_of[1]

    @property
    def _files(self) -> list[Path]:
        return [self._key_file, self._cert_file, *([self._client_ca_file] if self._client_ca_file else [])]


def check_dates(server: ssl.SSLContext, cert_file: Path, now: float) -> float:
    """Return by when the certificate that `server` shows, the first of `cert_file`, should be renewed.

    Whatever renews certificates does so when a third or half of their time is left, so a fifth means that it failed.
    The certificate must be valid at the Unix time `now`.

    Python reads the dates of a peer's certificate only, so the server shakes hands with a client in this process.

    Raises:
        InvalidInput: it is expired or not valid yet.
        ssl.SSLError: the server cannot show it.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cert_file)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(to_client, to_server)
    for side in (caller, server.wrap_bio(to_server, to_client, server_side=True)) * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    dates = caller.getpeercert() or {}
    from_s, until_s = (ssl.cert_time_to_seconds(str(dates[name])) for name in ("notBefore", "notAfter"))
    if now > until_s:
        raise InvalidInput.of(
            str(cert_file),
            expected="a certificate that is valid, because every caller refuses another one; renew it",
            got=f"one that expired at {_write_time(until_s)}",
        )
    if now < from_s:
        raise InvalidInput.of(
            str(cert_file),
            expected="a certificate that is valid already; check the clock of this machine",
            got=f"one that is valid from {_write_time(from_s)}",
        )
    return until_s - (until_s - from_s) / 5


def _write_time(unix_time: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix_time))
