"""Helm and kubectl: those on PATH, else those that `make build/programs/helm` fetches."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

_FETCHED = Path(__file__).parents[2] / "build" / "programs"


def program(name: str) -> str:
    """Return the path of a program; skip the test where it is missing."""
    path = shutil.which(name, path=f"{os.environ['PATH']}{os.pathsep}{_FETCHED}")
    if path is None:
        pytest.skip(f"needs {name} on PATH, or make build/programs/helm, which fetches it")
    return path


def kustomized(folder: Path) -> list[dict[str, Any]]:
    """Return the objects that a folder of kustomize makes."""
    made = subprocess.run([program("kubectl"), "kustomize", folder], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(made.stdout))
