import logging

import pytest
import yaml
from redis import Redis

from harness.chart_cases import environment, objects_of
from harness.doc_blocks import REPOSITORY
from harness.services import Loop
from relibra.planner.limits.redis_memory import most_bytes_of_a_job, tell_of_room
from relibra.planner.settings import PlannerSettings
from relibra.store import Store

GIB = 1 << 30
SETTINGS = PlannerSettings(
    redis_url="unix:///unused", retained_bytes=GIB, max_open_steps=4, max_step_size_bytes=GIB // 2
)


@pytest.mark.parametrize(("limit_bytes", "is_told"), [(None, False), (3 * GIB, False), (3 * GIB - 1, True)])
def test_S6_a_job_that_may_fill_redis_is_told_of(
    caplog: pytest.LogCaptureFixture, limit_bytes: int | None, is_told: bool
) -> None:
    tell_of_room(SETTINGS, limit_bytes)
    said = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(said) == is_told
    assert all(f"may take {3 * GIB} bytes" in each and "lower these settings" in each for each in said)


def test_the_memory_of_redis_is_asked_for(redis_url: str, store: Store, run: Loop) -> None:
    assert run(store.max_memory_bytes()) is None
    with Redis.from_url(redis_url) as client:
        client.config_set("maxmemory", str(GIB))
        try:
            assert run(store.max_memory_bytes()) == GIB
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
