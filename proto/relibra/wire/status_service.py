"""The status service as programs see it: JSON documents over HTTP."""

import json
import ssl
import urllib.error
import urllib.request
from http.client import BadStatusLine, HTTPException
from typing import Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from relibra.errors import ERRORS, InvalidInput, RelibraError, Unavailable
from relibra.wire.credentials import Credentials

DEFAULT_URL = "http://127.0.0.1:7421"
URL_VARIABLE = "RELIBRA_STATUS_URL"
_TIMEOUT_S = 10.0


class StatusService:
    """A client of the status service at a URL.

    It sends the token from the environment and trusts the CA from the environment besides those of the system; see
    `Credentials.from_env`.
    """

    option: ClassVar[str] = "url"
    """How callers name the URL, for messages."""

    def __init__(self, url: str, credentials: Credentials | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        """Check the URL. Each `get` opens a connection of its own.

        Raises:
            InvalidInput: `url` is not an HTTP URL, or a credentials file cannot be read.
        """
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise InvalidInput.of(self.option, expected="http://host:port or https://host:port", got=repr(url))
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._credentials = credentials or Credentials.from_env()
        self._tls = _tls(self._credentials) if url.startswith("https:") else None

    def get(self, *path: str | int, **query: str | int | None) -> Any:
        """Return a JSON document.

        Args:
            path: the parts of the path, not escaped.
            query: the query parameters; None leaves a parameter out.

        Raises:
            Unavailable: the service cannot be reached, or the URL is not that of a status service.
            RelibraError: the error that the service returned.
        """
        asked = urlencode({name: value for name, value in query.items() if value is not None})
        place = "/".join(quote(str(part), safe="") for part in path)
        request = urllib.request.Request(f"{self.url}/{place}?{asked}".rstrip("?"))
        for name, value in self._credentials.metadata:
            # Not sent to other hosts on a redirect: the token is for this service only.
            request.add_unredirected_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s, context=self._tls) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise _problem(error, self.url) from error
        except (OSError, ValueError, HTTPException) as error:
            if _is_grpc(error):
                raise Unavailable(
                    f"{self.url} is the port of a gRPC server, such as a planner (7420 by default). The status service "
                    f"has a port of its own (7421 by default): name it with {self.option} or {URL_VARIABLE}"
                ) from error
            reason = getattr(error, "reason", error)
            raise Unavailable(
                f"no status service responds at {self.url}: {reason}; start one with `relibra up` or `relibra status`, "
                f"or name another with {self.option} or {URL_VARIABLE}"
            ) from error


def _is_grpc(error: Exception) -> bool:
    """Return whether an answer that is not HTTP is the SETTINGS frame with which every HTTP/2 server begins."""
    return isinstance(error, BadStatusLine) and str(error.args[0])[3:4] == "\x04"


def _tls(credentials: Credentials) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context()
        if credentials.ca_file is not None:
            context.load_verify_locations(credentials.ca_file)
        if credentials.cert_file is not None:
            context.load_cert_chain(credentials.cert_file, credentials.key_file)
    except OSError as error:
        raise InvalidInput.of("credentials", expected="certificate and key files (PEM)", got=error) from error
    return context


def _problem(answer: urllib.error.HTTPError, url: str) -> RelibraError:
    try:
        problem = json.load(answer)
        return ERRORS.get(problem["title"], RelibraError)(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return Unavailable(
            f"{url} returned {answer.code} {answer.reason}, which a status service never does; is it another service?"
        )
