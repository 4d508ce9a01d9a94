"""The `relibra` command: one module per verb, each a thin shell over the package that does the work.

In:   command lines, with environment variables where an option says so.
Out:  tables and progress for people, or JSON; exit status 0, 1 (the answer is no), 2 (refused: the input, or the
      question by a service) or 3 (a fault of relibra itself).
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
