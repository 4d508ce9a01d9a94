import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).parents[1]

# A test never asserts seconds, and a busy machine is no failure.
settings.register_profile("relibra", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("relibra")


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """The folder of real routing traces: RELIBRA_TRACES, else beside the repository; skips where there is none."""
    folder = Path(os.environ.get("RELIBRA_TRACES") or REPOSITORY.parent / "shared" / "traces")
    if not folder.is_dir():
        pytest.skip("no real routing traces: set RELIBRA_TRACES to their folder")
    return folder


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers share files, as fixtures do their work once a file; the ranks of tests/distributed are started once."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        is_of_ranks = item.path.is_relative_to(REPOSITORY / "tests" / "distributed")
        item.add_marker(pytest.mark.xdist_group("ranks" if is_of_ranks else item.path.name))
