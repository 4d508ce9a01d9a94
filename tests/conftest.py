import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """The folder of real routing traces: RELIBRA_TRACES, else beside the repository; skips where there is none."""
    folder = Path(os.environ.get("RELIBRA_TRACES") or REPOSITORY.parent / "shared" / "traces")
    if not folder.is_dir():
        pytest.skip("no real routing traces: set RELIBRA_TRACES to their folder")
    return folder
