"""Print a lock as a software bill of materials in CycloneDX 1.5: `python deploy/sbom.py services`.

It lists the Python packages. The base image, and torch in the environments that have it, are not in a lock, so the bill
calls itself incomplete. It has neither a time nor a random number, so equal locks give equal bills.
"""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]


def bill(name: str) -> dict[str, Any]:
    """Return the bill of the lock `name`, with one component a package."""
    lock = (REPOSITORY / "deploy" / "locks" / f"{name}.txt").read_text()
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    relibra = {"type": "application", "bom-ref": "relibra", "name": f"relibra {name}", "version": version}
    packages = [_component(*each) for each in re.findall(r"^([\w.-]+)==([^ ;\\]+)", lock, re.M)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": relibra},
        "components": packages,
        "dependencies": [{"ref": "relibra", "dependsOn": [each["bom-ref"] for each in packages]}],
        "compositions": [{"aggregate": "incomplete", "assemblies": ["relibra"]}],
    }


def _component(name: str, version: str) -> dict[str, str]:
    url = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


if __name__ == "__main__":
    print(json.dumps(bill(sys.argv[1]), indent=1))
