"""Whether a status service answers, and is of this version."""

from relibra.cli.checks.finding import Finding, failed, ok, skipped, warning
from relibra.cli.status_client import DEFAULT_URL, StatusClient
from relibra.errors import Forbidden, RelibraError, Unauthenticated, Unavailable


def examine(url: str | None, version: str) -> list[Finding]:
    """Ask a status service; the default one if none is named.

    Raises:
        InvalidInput: the URL is not one of HTTP.
    """
    client = StatusClient(url or DEFAULT_URL)
    found: list[Finding] = []
    try:
        found += judge_version(client.url, client.get("openapi.json")["info"]["version"], version)
        client.get("readyz")
        client.get("v1", "jobs")
    except (Unauthenticated, Forbidden) as error:
        return [*found, failed("status: access", str(error), "set RELIBRA_TOKEN to a token that may look")]
    except RelibraError as error:
        if url is None and isinstance(error, Unavailable):
            return [skipped("status", f"none was named (--url or RELIBRA_STATUS_URL), and none is at {client.url}")]
        return [failed("status", str(error), "start it with `relibra status`, or bring its Redis back")]
    return found


def judge_version(url: str, theirs: str, ours: str) -> list[Finding]:
    """Judge the versions of the service and of this relibra."""
    if theirs != ours:
        return [warning("status", f"{url} runs relibra {theirs}, this is {ours}", "install one version everywhere")]
    return [ok("status", f"{url} answers, relibra {theirs}")]
