import logging
from pathlib import Path

import pytest
import yaml

from harness.doc_blocks import REPOSITORY
from relibra.planner.limits.container_memory import container_limit_bytes, fitted, needed_bytes
from relibra.planner.settings import PlannerSettings

URL = "unix:///unused"
GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "limit"), [("4294967296\n", 4 * GIB), ("max\n", None), ("9223372036854771712\n", None), (None, None)]
)
def test_the_limit_of_the_container_is_read(tmp_path: Path, text: str | None, limit: int | None) -> None:
    path = tmp_path / "memory.max"
    if text is not None:
        path.write_text(text)
    assert container_limit_bytes((tmp_path / "missing", path)) == limit


def test_S7_a_solve_ends_with_a_reason_before_the_container_kills_it(caplog: pytest.LogCaptureFixture) -> None:
    settings = PlannerSettings.load(redis_url=URL)
    assert fitted(settings, None) is settings
    assert fitted(settings, needed_bytes(settings)) is settings
    assert not caplog.records
    for limit_bytes in (4 * GIB, 8 * GIB):
        small = fitted(settings, limit_bytes)
        assert limit_bytes - 2 < needed_bytes(small) <= limit_bytes
    assert f"solver_memory_bytes is {GIB // 2} instead of" in caplog.messages[0]
    assert fitted(settings, GIB).solver_memory_bytes == 64 << 20


def test_a_setting_that_does_not_fit_the_container_stays_and_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    settings = PlannerSettings.load(redis_url=URL, solver_memory_bytes=8 * GIB)
    with caplog.at_level(logging.WARNING):
        assert fitted(settings, 4 * GIB) is settings
    assert f"set solver_memory_bytes to {GIB // 2}" in caplog.text


@pytest.mark.parametrize("overlay", ["dev", "prod"])
def test_the_planner_of_kubernetes_has_room_for_the_default(overlay: str) -> None:
    path = REPOSITORY / "deploy" / "kubernetes" / "overlays" / overlay / "relibra.yaml"
    (deployment,) = [
        each
        for each in yaml.safe_load_all(path.read_text())
        if (each["kind"], each["metadata"]["name"]) == ("Deployment", "planner")
    ]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    resources = container["resources"]
    limit, request = (int(resources[each]["memory"].removesuffix("Gi")) * GIB for each in ("limits", "requests"))
    assert needed_bytes(PlannerSettings.load(redis_url=URL)) <= limit
    assert 4 * request >= limit, "a node takes in more planners than it can hold once they solve"
