"""The `relibra` command: one module per verb, each a thin shell over the package that does the work.

In:   command lines; some options can also be set by environment variables.
Out:  tables and progress bars, or JSON. Exit status 0, 1 (the answer is no), 2 (the input was refused, or a service
      refused the request) or 3 (a bug in relibra).
"""

import sys


def main() -> None:
    """Entry point of the `relibra` script."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        sys.exit("the relibra command needs its planner extra: pip install 'relibra[planner]'")
    from relibra.cli.app import run

    run()
