from pathlib import Path

import pytest

from relibra.planner.limits.container_cores import container_cores, with_threads
from relibra.planner.settings import PlannerSettings

URL = "unix:///unused"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_the_share_of_the_container_is_read(tmp_path: Path, files: dict[str, str], cores: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert container_cores(tmp_path) == cores


@pytest.mark.parametrize(("limit_cores", "num_threads"), [(None, 16), (4.0, 4), (1.5, 1), (0.5, 1), (64.0, 16)])
def test_a_solve_uses_the_cores_of_its_container(limit_cores: float | None, num_threads: int) -> None:
    settings = PlannerSettings.load(redis_url=URL)
    assert with_threads(settings, limit_cores, 16).num_solver_threads == num_threads


def test_a_number_of_threads_that_somebody_set_stays() -> None:
    settings = PlannerSettings.load(redis_url=URL, num_solver_threads=3)
    assert with_threads(settings, 1.0, 16) is settings
