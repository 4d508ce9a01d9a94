"""Finds the files that a script reads commands from."""

from pathlib import Path

_MAX_BYTES = 1 << 20


def find_source(name: str, folder: Path, script: Path) -> Path | None:
    """Return the file that `source name` reads, or None if it is not there.

    Scripts name files by paths of the machine that they run on. If a path does not exist here, its longest end that
    exists below a folder above the script is taken: for `/root/slime/scripts/models/a.sh`, a `scripts/models/a.sh`.
    """
    if not name:
        return None
    for path in _candidates(name, folder, script):
        try:
            if path.is_file() and path.stat().st_size <= _MAX_BYTES:
                return path
        except OSError:
            continue
    return None


def _candidates(name: str, folder: Path, script: Path) -> list[Path]:
    parts = [each for each in Path(name).parts if each not in ("/", "..", ".")]
    ends = [Path(*parts[at:]) for at in range(len(parts))]
    above = list(script.parents)[:8]
    return [folder / name, script.parent / name, *(parent / end for end in ends for parent in above)]
