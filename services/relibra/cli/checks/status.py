"""Checks that a status service responds and has the same version."""

from relibra.cli.checks.finding import Finding, failed, ok, skipped, warning
from relibra.cli.status_client import DEFAULT_URL, StatusClient
from relibra.errors import Forbidden, RelibraError, Unauthenticated, Unavailable


def examine(url: str | None, version: str) -> list[Finding]:
    """Query a status service; without a URL, the default one.

    Raises:
        InvalidInput: `url` is not an HTTP URL.
    """
    client = StatusClient(url or DEFAULT_URL)
    findings: list[Finding] = []
    try:
        findings += judge_version(client.url, client.get("openapi.json")["info"]["version"], version)
        client.get("readyz")
        client.get("v1", "jobs")
    except (Unauthenticated, Forbidden) as error:
        return [
            *findings,
            failed("status: access", str(error), "set RELIBRA_TOKEN to a token with role viewer, trainer or admin"),
        ]
    except RelibraError as error:
        if url is None and isinstance(error, Unavailable):
            return [
                skipped("status", f"no URL given (--url or RELIBRA_STATUS_URL), and no status service at {client.url}")
            ]
        return [failed("status", str(error), "start it with `relibra status`, or restart its Redis")]
    return findings


def judge_version(url: str, theirs: str, ours: str) -> list[Finding]:
    """Return the finding about the versions of the service and of this relibra."""
    if theirs != ours:
        return [
            warning(
                "status", f"{url} runs relibra {theirs}, this machine has {ours}", "install the same version everywhere"
            )
        ]
    return [ok("status", f"{url} responds, relibra {theirs}")]
