"""The environment variables that relibra reads, and misspelt ones, which would be ignored without a word."""

import difflib
import re
from collections.abc import Iterable

PREFIX = "RELIBRA_"

_SETTINGS = """
    ALLOWED_HOSTS ANSWER_TIMEOUT_S AUTH HEAD_TIMEOUT_S HOST INSECURE LEASE_S MAX_CALLS_PER_JOB MAX_CELLS
    MAX_CONNECTIONS MAX_INGEST_BYTES_PER_S MAX_JOBS MAX_JOBS_BY_PREFIX MAX_OPEN_STEPS MAX_REPORTS_SIZE_BYTES
    MAX_REQUESTS_PER_VIEWER MAX_SEQUENCES MAX_STEP_SIZE_BYTES MAX_STREAMS_PER_JOB MAX_VIEWERS
    MAX_VIEWERS_PER_TOKEN METRICS_PORT NUM_CACHED_PLANS NUM_SOLVERS NUM_SOLVER_THREADS PACK_TIMEOUT_S PLAINTEXT
    POLL_INTERVAL_S PORT REDIS_PASSWORD_FILE REDIS_URL RETAINED_BYTES RETAINED_S RETAINED_STEPS
    SOLVER_MEMORY_BYTES SOLVE_TIMEOUT_S TLS_CERT_FILE TLS_CLIENT_CA_FILE TLS_KEY_FILE TRUST_DOMAIN
"""
"""Settings of planner and status service."""
_OTHERS = """
    AREAL_MODEL ATTEMPT COMPLETE CONFIG_FILE DATA_DIR GUARD HARDWARE HOST_COPY JOB LOG_FORMAT MAX_EXPANSION
    MEMORY_BUDGET_GIB MODE PACK PLANNER PLAN_TIMEOUT_S REORDER SLOTS STATUS_URL TLS_CA_FILE TOKEN TOKEN_FILE
    TRACEBACK TRACES TRANSPORT
"""
"""Variables of the command line, of clients, of plug-ins and of the benchmarks."""
VARIABLES = frozenset(PREFIX + name for name in (*_SETTINGS.split(), *_OTHERS.split()))

_NEAR = 0.75
_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP)(_\w+)?$|_PORT$")
"""Kubernetes sets such variables for every Service whose name begins with `relibra-`."""


def unknown_variables(names: Iterable[str]) -> dict[str, str | None]:
    """Return the variables that look like relibra's and that nothing reads, each with the known name nearest to it.

    A name that is not near to any is one of other programs, or of another version, and comes with None.
    """
    unknown = sorted(name for name in set(names) - VARIABLES if name.startswith(PREFIX))
    bare = {name.removeprefix(PREFIX): name for name in VARIABLES}
    suggestions: dict[str, str | None] = {}
    for name in unknown:
        near = difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1, cutoff=_NEAR)
        if near or not _OF_KUBERNETES.search(name):
            suggestions[name] = bare[near[0]] if near else None
    return suggestions


def complaint(name: str, nearest: str | None) -> str:
    """Return the sentence about a variable that nothing reads."""
    meant = f"; did you mean {nearest}?" if nearest else ""
    return f"nothing reads the environment variable {name}{meant}"
