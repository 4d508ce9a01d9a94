"""Which names a browser may call this service by, where nothing else keeps pages of other sites out.

A site can point its own name at 127.0.0.1 after its page has loaded (DNS rebinding). To the browser this service then
belongs to the site, and scripts of the site may read it. The name stays in the `Host` header and gives the site away.
"""

import ipaddress
import socket
from dataclasses import dataclass
from typing import Self

from relibra.errors import Forbidden, one_line

_ANY = "*"


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """The names of this service: addresses, `localhost`, the name of this machine, and `allowed_hosts`.

    No site can take an IP address or `localhost` as its name.
    """

    names: frozenset[str]

    @classmethod
    def of(cls, host: str, allowed_hosts: str) -> Self:
        """Return the names of a service that listens on `host`; `allowed_hosts` are further names, between commas."""
        names = (host, socket.gethostname(), *allowed_hosts.split(","))
        return cls(frozenset(name.strip().rstrip(".").lower() for name in names if name.strip()))

    def check(self, header: str | None) -> None:
        """Return if the `Host` header of a request names this service. A request without the header is no browser's.

        Raises:
            Forbidden: it is another name.
        """
        if header is None or _ANY in self.names:
            return
        name = _without_port(header).rstrip(".").lower()
        if name == "localhost" or name.endswith(".localhost") or name in self.names or _is_address(name):
            return
        raise Forbidden(
            f"the request is for host {one_line(name)!r}, which is not known as a name of this service, so a page of "
            "another site may have sent it; call the service by its address, or add the name to allowed_hosts "
            "(RELIBRA_ALLOWED_HOSTS)"
        )


def _without_port(header: str) -> str:
    header = header.strip()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
