"""From when until when a certificate is valid.

Python's `ssl` reads the dates of a peer's certificate only. For a file of one's own, this module reads the few DER
fields (RFC 5280, section 4.1) up to the dates.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from relibra.errors import InvalidInput

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """The first and the last moment of a certificate."""

    not_before: datetime
    not_after: datetime

    def check(self, name: str, now: datetime) -> None:
        """Return if the certificate in the file `name` is valid at `now`.

        Raises:
            InvalidInput: it is expired or not valid yet.
        """
        if now > self.not_after:
            raise InvalidInput.of(
                name,
                expected="a certificate that is valid, because every caller refuses another one; renew it",
                got=f"one that expired at {self.not_after:%Y-%m-%d %H:%M} UTC",
            )
        if now < self.not_before:
            raise InvalidInput.of(
                name,
                expected="a certificate that is valid already; check the clock of this machine",
                got=f"one that is valid from {self.not_before:%Y-%m-%d %H:%M} UTC",
            )


def read_validity(pem: bytes, name: str) -> Validity:
    """Return when the first certificate of a PEM file is valid.

    Raises:
        InvalidInput: the file has no certificate that can be read; the message has its `name`.
    """
    found = _PEM.search(pem)
    try:
        if found is None:
            raise ValueError("no PEM block CERTIFICATE")
        certificate, _ = _read(base64.b64decode(b"".join(found[1].split()), validate=True), _SEQUENCE)
        fields, _ = _read(certificate, _SEQUENCE)
        if fields[:1] == bytes([_VERSION]):
            _, fields = _read(fields, _VERSION)
        for _ in ("serial number", "signature algorithm", "issuer"):
            _, fields = _read(fields)
        dates, _ = _read(fields, _SEQUENCE)
        not_before, rest = _read_time(dates)
        not_after, _ = _read_time(rest)
    except (ValueError, IndexError, binascii.Error) as error:
        raise InvalidInput.of(name, expected="a certificate (PEM)", got=error) from error
    return Validity(not_before=not_before, not_after=not_after)


def _read(data: bytes, tag: int | None = None) -> tuple[bytes, bytes]:
    """Return the content of the first DER value, and what follows it."""
    if tag not in (None, data[0]):
        raise ValueError(f"DER tag {data[0]:#x} in place of {tag:#x}")
    size, start = data[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[2:start], "big")
    if start + size > len(data):
        raise ValueError("truncated DER")
    return data[start : start + size], data[start + size :]


def _read_time(data: bytes) -> tuple[datetime, bytes]:
    content, rest = _read(data)
    text = content.decode("ascii")
    if data[0] == _UTC_TIME:
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif data[0] != _GENERALIZED_TIME:
        raise ValueError(f"DER tag {data[0]:#x} in place of a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC), rest
