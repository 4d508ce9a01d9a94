"""The `relibra` command: one module per verb, each a thin shell over the package that does the work.

In:   command lines; some options can also be set by environment variables.
Out:  tables and progress bars, or JSON. Exit status 0, 1 (the answer is no), 2 (the input was refused, or a service
      refused the request) or 3 (a bug in relibra).
"""

import os
import signal
import sys


def main() -> None:
    """Entry point of the `relibra` script."""
    if os.getpid() == 1:
        # Linux gives the first process of a container only those signals that it handles. A service that still imports
        # its modules would not notice that it shall stop, and the container would be killed after its grace period.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        sys.exit(
            "the relibra command needs its planner extra: pip install 'relibra[planner]' ([status] without the solver)"
        )
    from relibra.cli.app import run

    run()
