"""The machine code of the solver that comes with an image, so that no container has to compile it.

numba reads and adds machine code in one folder, `NUMBA_CACHE_DIR`, and takes a folder only if it can write there. An
image is read-only, so each container begins with a copy. `python -m relibra.planner.solve.machine_code FOLDER`, run in
the build of an image, compiles into FOLDER. Without FOLDER it compiles to where numba looks;
`make` does so while it installs.
"""

import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

SHIPPED = Path(sys.prefix) / "share" / "relibra" / "machine-code"
"""Where an image has the code."""
_FOLDER_VARIABLE = "NUMBA_CACHE_DIR"


def provide(shipped: Path = SHIPPED) -> None:
    """Copy the shipped code to where numba looks for it, unless there is none, or that folder has code already.

    Without the copy the solver compiles, which takes half a minute. The log says why a copy could not be made.
    """
    folder = Path(os.environ.get(_FOLDER_VARIABLE, ""))
    if not folder.name or not shipped.is_dir():
        return
    try:
        if folder.is_dir() and any(folder.iterdir()):
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Another process that sees the folder must see all of it.
        whole = Path(tempfile.mkdtemp(dir=folder.parent))
        shutil.copytree(shipped, whole, dirs_exist_ok=True, copy_function=shutil.copyfile)
        whole.rename(folder)
    except OSError as error:
        logger.warning("the solver compiles its code again: %s cannot be copied to %s: %s", shipped, folder, error)


def main(folder: str | None = None) -> None:
    """Compile everything that a solve needs into `folder`; None for where numba looks."""
    if folder is not None:
        os.environ[_FOLDER_VARIABLE] = folder
    from relibra.planner.solve.solving import warm_up  # loads numba, which reads the variable

    print(f"the solver is compiled: {warm_up()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
