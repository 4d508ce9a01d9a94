import logging
from pathlib import Path

import pytest
import yaml
from redis import Redis

from harness.chart_cases import environment, objects_of
from harness.doc_blocks import REPOSITORY
from harness.services import Loop
from relibra.planner.limits.machine import (
    container_bytes,
    container_cores,
    most_bytes_of_a_job,
    needed_bytes,
    tell_of_room,
    with_memory,
    with_threads,
)
from relibra.planner.settings import PlannerSettings
from relibra.store import Store

URL = "unix:///unused"
GIB = 1 << 30
SETTINGS = PlannerSettings(redis_url=URL, retained_bytes=GIB, max_open_steps=4, max_step_size_bytes=GIB // 2)


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


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("memory.max", "4294967296\n", 4 * GIB),
        ("memory.max", "max\n", None),
        ("memory/memory.limit_in_bytes", "4294967296\n", 4 * GIB),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", None),
        ("memory.of_something_else", "1\n", None),
    ],
)
def test_the_memory_of_the_container_is_read(tmp_path: Path, name: str, text: str, limit: int | None) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert container_bytes(tmp_path) == limit


def test_S7_a_solve_ends_with_a_reason_before_the_container_kills_it(caplog: pytest.LogCaptureFixture) -> None:
    settings = PlannerSettings.load(redis_url=URL)
    assert with_memory(settings, None) is settings
    assert with_memory(settings, needed_bytes(settings)) is settings
    assert not caplog.records
    for limit_bytes in (4 * GIB, 8 * GIB):
        small = with_memory(settings, limit_bytes)
        assert limit_bytes - 2 < needed_bytes(small) <= limit_bytes
    assert f"solver_memory_bytes is {GIB // 2} instead of" in caplog.messages[0]
    assert with_memory(settings, GIB).solver_memory_bytes == 64 << 20


def test_a_setting_that_does_not_fit_the_container_stays_and_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    settings = PlannerSettings.load(redis_url=URL, solver_memory_bytes=8 * GIB)
    with caplog.at_level(logging.WARNING):
        assert with_memory(settings, 4 * GIB) is settings
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


@pytest.mark.parametrize(("limit_bytes", "is_told"), [(None, False), (3 * GIB, False), (3 * GIB - 1, True)])
def test_S6_a_job_that_may_fill_redis_is_told_of(
    caplog: pytest.LogCaptureFixture, limit_bytes: int | None, is_told: bool
) -> None:
    tell_of_room(SETTINGS, limit_bytes)
    said = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(said) == is_told
    assert all(f"may take {3 * GIB} bytes" in each and "lower these settings" in each for each in said)


def test_the_memory_of_redis_is_asked_for(redis_url: str, store: Store, run: Loop) -> None:
    assert run(store.server_state()).max_memory_bytes is None
    with Redis.from_url(redis_url) as client:
        client.config_set("maxmemory", str(GIB))
        try:
            assert run(store.server_state()).max_memory_bytes == GIB
        finally:
            client.config_set("maxmemory", "0")


def _of(variables: dict[str, str]) -> PlannerSettings:
    values = {name.removeprefix("RELIBRA_").lower(): value for name, value in variables.items()}
    known = {name: value for name, value in values.items() if name in PlannerSettings.model_fields}
    return PlannerSettings(**known | {"redis_url": "unix:///unused"})


def test_S6_no_job_alone_fills_the_redis_of_compose_or_of_a_trial() -> None:
    services = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]
    redis, planner = services["redis"], services["planner-1"]
    assert redis["command"][-1].endswith(" --maxmemory 3gb")
    assert redis["mem_limit"] == "4g", "a quarter is left for what Redis needs while it rewrites its file"
    assert most_bytes_of_a_job(_of(planner["environment"])) <= 3 * GIB

    sets = [each for each in objects_of("trial") if each["kind"] in ("Deployment", "StatefulSet")]
    pods = {each["metadata"]["name"]: each["spec"]["template"] for each in sets}
    (container,) = pods["redis"]["spec"]["containers"]
    assert "--maxmemory 3gb " in container["command"][-1]
    assert container["resources"]["limits"]["memory"] == "4Gi"
    set_values = {name: value for name, value in environment(pods["planner"]).items() if value is not None}
    assert most_bytes_of_a_job(_of(set_values)) <= 3 * GIB
