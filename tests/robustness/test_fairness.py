"""While one client does the worst that it can, another one waits at most five times as long as before.

Only `make test-robustness` runs this: the waits depend on the machine and on what else runs there.
"""

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.redis_deployments import OneServer
from harness.robustness.attacks import Target
from harness.robustness.fairness import MAX_RATIO, Fairness, attacking, p99_s
from harness.robustness.world import SCHEDULE, Planner, World, again, create_tokens, figure
from harness.services import CLUSTER, MODEL, PARAMS, Service, report_sequences
from relibra.wire.client import PlannerClient

pytestmark = [pytest.mark.robustness, pytest.mark.integration]

NUM_WAITS = 50
NUM_WARM_UP = 5
ATTACKED_S = 20.0
"""How long the waits beside an attack are measured at least; calls without a message are renewed every 10 to 20 s."""
REFUSED_S = 45.0
"""The same where thousands of calls of one job are refused: they are renewed every 20 s."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """An attack, what it is in words, and what stops it: a sentence, and the limits that count its refusals."""

    name: str
    attack: str
    stopped_by: str
    counted: tuple[str, ...] = ()
    has_token: bool = True
    attacked_s: float = ATTACKED_S


ON_PLANNERS = [
    Row(
        name="calls_without_a_message",
        attack="8448 calls of headers only, no auth",
        stopped_by="calls: each connection has its share of 8192; 10 to 20 s for a message",
        counted=("calls", "message_timeout"),
        has_token=False,
    ),
    Row(
        name="calls_without_a_message",
        attack="8448 calls of headers only, with a token",
        stopped_by="max_calls_per_job 4096; 100 calls of a job are refused per second, the others within 20 s",
        counted=("max_calls_per_job", "message_timeout"),
        attacked_s=REFUSED_S,
    ),
    *(
        Row(
            name=name,
            attack=f"3584 calls {what}, each renewed when it is refused",
            stopped_by="100 such calls of an address are refused per second, the others within 20 s",
            attacked_s=REFUSED_S,
        )
        for name, what in (
            ("calls_without_a_token", "without a token"),
            ("calls_with_unknown_tokens", "with tokens that nobody made"),
        )
    ),
    Row(
        name="watches_of_health",
        attack="8448 watches of the planner's health",
        stopped_by="256 watches",
        counted=("health_watches",),
        attacked_s=REFUSED_S,
    ),
    Row(
        name="halves_of_messages",
        attack="24 messages of 1 MiB without their end",
        stopped_by="64 messages of a job and role are received at a time, each within 10 to 20 s",
        counted=("message_timeout",),
    ),
    Row(
        name="shapes_of_many_extents",
        attack="shapes of a million extents, one after another",
        stopped_by="elements of a message, counted before parsing",
    ),
    Row(
        name="steps_of_many_points",
        attack="steps of 512 ranks, cost model of 256 points",
        stopped_by="256 points; jobs take turns at solving",
    ),
    Row(
        name="schedules_of_tiny_sequences",
        attack="schedules of 262144 reported sequences",
        stopped_by="max_sequences; one large message of a job is in work at a time",
    ),
    Row(
        name="schedules_of_nothing",
        attack="schedules of 262144 sequences that nobody reported",
        stopped_by="all must be reported; one large message of a job is in work at a time",
    ),
    Row(
        name="fetches_that_wait",
        attack="4096 fetches of a step that never comes",
        stopped_by="max_calls_per_job; waiting calls look together",
    ),
    Row(
        name="reports_of_execution",
        attack="reports of 65536 cells, 16 at a time",
        stopped_by="max_cells; one large message of a job is in work at a time",
    ),
    Row(
        name="job_ids_of_megabytes",
        attack="job ids of 50 MiB, no auth",
        stopped_by="a part of a message has at most 1 MiB",
        has_token=False,
    ),
]
ON_STATUS = [
    Row(
        name="streams_of_events",
        attack="700 event streams at the status service",
        stopped_by="max_viewers_per_token 64",
        counted=("max_viewers_per_token",),
    ),
    Row(
        name="unfinished_heads",
        attack="900 unfinished heads at the status service",
        stopped_by="max_connections 768: the longest unfinished ones make room; head_timeout_s",
        counted=("max_connections",),
        has_token=False,
    ),
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[World]:
    """A Redis without planners, once for each attack whatever the number of rounds."""
    folder = tmp_path / "redis"
    folder.mkdir()
    with World(tmp_path, OneServer(folder), []) as world:
        yield world


def measure(row: Row, target: Target, wait: Callable[[], float]) -> Fairness:
    """Return how long `wait` takes before an attack and beside it."""
    for _ in range(NUM_WARM_UP):
        wait()
    quiet_s = [wait() for _ in range(NUM_WAITS)]
    with attacking(row.name, target) as end:
        for _ in range(NUM_WARM_UP):
            wait()
        attacked_s: list[float] = []
        started_at = time.monotonic()
        while len(attacked_s) < NUM_WAITS or time.monotonic() - started_at < row.attacked_s:
            attacked_s.append(wait())
        answers = end()
    return Fairness(
        attack=row.attack,
        stopped_by=row.stopped_by,
        num_waits=len(attacked_s),
        quiet_p99_s=p99_s(quiet_s),
        attacked_p99_s=p99_s(attacked_s),
        answers=answers,
    )


@pytest.mark.parametrize("row", ON_PLANNERS, ids=lambda row: row.attack)
def test_S6_a_plan_comes_in_time_beside_an_attack(
    measured: list[Fairness], place: World, row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, attacker = create_tokens(place)
    monkeypatch.setenv("RELIBRA_TOKEN", victim)
    planner = place.start_planner(RELIBRA_AUTH="required" if row.has_token else "none", RELIBRA_METRICS_PORT="0")
    with PlannerClient(planner.address, timeout_s=120) as client:
        client.register_job("victim", MODEL, CLUSTER, PARAMS)
        steps = iter(range(1, 1_000_000))

        def wait() -> float:
            step = next(steps)
            ids = report_sequences(planner.address, "victim", step)
            started_at = time.monotonic()
            again(lambda: client.submit_schedule("victim", step, ids, SCHEDULE))
            again(lambda: client.fetch_plan("victim", step, MODEL, wait_s=60))
            return time.monotonic() - started_at

        found = measure(row, Target(address=planner.address, token=attacker if row.has_token else ""), wait)
    measured.append(found)
    check(found, row, planner, 'relibra_planner_limited_total{limit="%s"}')


@pytest.mark.parametrize("row", ON_STATUS, ids=lambda row: row.attack)
def test_S6_a_page_comes_in_time_beside_an_attack(
    measured: list[Fairness], place: World, row: Row, tmp_path: Path
) -> None:
    victim, attacker = create_tokens(place)
    folder = tmp_path / "status"
    folder.mkdir()
    service = Service("status", place.redis.url, folder, RELIBRA_AUTH="required", RELIBRA_METRICS_PORT="0")

    def wait() -> float:
        started_at = time.monotonic()
        with closing(http.client.HTTPConnection(service.address.removeprefix("http://"), timeout=60)) as connection:
            connection.request("GET", "/v1/jobs", headers={"authorization": f"Bearer {victim}"})
            response = connection.getresponse()
            assert response.read(), response.status
        assert response.status == 200
        return time.monotonic() - started_at

    try:
        found = measure(row, Target(address=service.address, token=attacker if row.has_token else ""), wait)
        measured.append(found)
        check(found, row, service, 'relibra_status_refused_total{setting="%s"}')
    finally:
        service.stop()


def check(found: Fairness, row: Row, service: Planner | Service, metric: str) -> None:
    """Check that the attack was stopped by what stops it, and that the victim did not wait long."""
    for limit in row.counted:
        assert figure(service, metric % limit) > 0, f"{limit} did not stop {row.attack}: {found.answers}"
    assert found.ratio < MAX_RATIO, f"broke S6 - {row.attack}: p99 {found.attacked_p99_s:.3f} s, {found.ratio:.1f} x"
