"""Print the packages that relibra needs with some of its extras: `python requirements.py EXTRA...`.

Images install them before the sources, so that an edit of the sources does not install them again. This runs before any
package is there.
"""

import re
import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, object], extras: list[str]) -> list[str]:
    """Return the requirements of a `[project]` table with these extras; `relibra[other]` means those of `other`."""
    optional = project["optional-dependencies"]
    found = list(project["dependencies"])
    pending = list(extras)
    for extra in pending:
        for each in optional[extra]:
            own = re.fullmatch(r"relibra\[(.+)\]", each)
            if own is None:
                found.append(each)
            else:
                pending += [other for other in own[1].split(",") if other not in pending]
    return found


if __name__ == "__main__":
    print("\n".join(requirements(tomllib.loads(Path("pyproject.toml").read_text())["project"], sys.argv[1:])))
