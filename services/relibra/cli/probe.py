"""The health check of a container: `python -m relibra.cli.probe READY_URL LIVE_URL READY_FILE`.

Docker restarts a container that ends, and leaves one alone that is unhealthy. So this check ends a service that hangs,
and the restart policy of the container starts it again. It imports nothing but the standard library, because it runs
every few seconds.
"""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HUNG_AFTER_S = 30.0
"""How long a service may leave the check without an answer before the check ends it."""
_TIMEOUT_S = 2.0
_INTERVAL_S = 1.0


def main(arguments: list[str]) -> int:
    """Return 0 if the service is ready and 1 if not, and print which; end a service that hangs."""
    ready_url, live_url, ready_file = arguments
    deadline = time.monotonic() + HUNG_AFTER_S
    while (fault := _ask(live_url)) is not None:
        if isinstance(fault, ConnectionRefusedError):
            print(f"nothing listens at {live_url}: the service starts, or has ended")
            return 1
        if time.monotonic() >= deadline:
            print(f"{live_url} did not answer well for {HUNG_AFTER_S:.0f} s: {fault}; {_end(Path(ready_file))}")
            return 1
        time.sleep(_INTERVAL_S)
    fault = _ask(ready_url)
    print("ready" if fault is None else fault)
    return 0 if fault is None else 1


def _ask(url: str) -> Exception | None:
    """Return None if `url` answers well, or what is wrong."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        return RuntimeError(error.read().decode(errors="replace").strip() or str(error))
    except urllib.error.URLError as error:
        return error.reason if isinstance(error.reason, Exception) else error
    except OSError as error:
        return error


def _end(ready_file: Path) -> str:
    """End the service that wrote `ready_file`; return what was done."""
    try:
        (pid,) = json.loads(ready_file.read_text())["pids"].values()
        if pid == 1:
            # Linux protects the first process of a container from signals that come from inside.
            return "it is process 1 and cannot be ended from inside its container: give the container an init"
        os.kill(pid, signal.SIGKILL)
    except (OSError, ValueError, KeyError) as error:
        return f"it cannot be ended: {error}"
    return f"process {pid} was ended, so that the container restarts"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
