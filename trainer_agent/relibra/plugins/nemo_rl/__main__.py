"""`python -m relibra.plugins.nemo_rl SCRIPT ...` runs a script of NeMo-RL as `python SCRIPT ...` does, with relibra."""

import runpy
import sys
from pathlib import Path

from relibra.plugins.nemo_rl.launch import install


def main(arguments: list[str]) -> None:
    """Install the plug-in, and run the script with its arguments."""
    if not arguments:
        sys.exit("expected a script of NeMo-RL, as in: python -m relibra.plugins.nemo_rl examples/run_grpo.py")
    install()
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)  # as python does for a script
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
