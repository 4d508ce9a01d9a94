"""While one client does the worst that it can, another one waits at most five times as long as before.

Only `make test-robustness` runs this: the waits depend on the machine and on what else runs there.
"""

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from harness.redis_deployments import OneServer
from harness.robustness.attacks import Target
from harness.robustness.fairness import MAX_RATIO, Fairness, attacking, p99_s
from harness.robustness.world import SCHEDULE, Planner, World, again, create_tokens, figure, metrics_url
from harness.services import CLUSTER, MODEL, PARAMS, Loop, Service, report_sequences
from harness.watched_job import WatchedJob
from relibra.planning import Cluster, Model, Phase
from relibra.store import Store
from relibra.wire.client import PlannerClient

pytestmark = [pytest.mark.robustness, pytest.mark.integration]

NUM_WAITS = 50
NUM_WARM_UP = 5
ATTACKED_S = 20.0
"""How long the waits beside an attack are measured at least; calls without a message are renewed every 10 to 20 s."""
REFUSED_S = 45.0
"""The same where thousands of calls of one job are refused: they are renewed every 20 s."""
MAX_HEALTH_S = 1.0
"""How long `/healthz` may take; orchestrators wait for 2 s."""
REPORTED_MODEL = Model(num_layers=58, num_experts=64, top_k=4)
REPORTED_CLUSTER = Cluster(num_nodes=8, gpus_per_node=8, redundant_slots=1)


@dataclass(frozen=True, kw_only=True)
class Row:
    """An attack, what it is in words, and what stops it: a sentence, and the limits that count its refusals."""

    name: str
    attack: str
    stopped_by: str
    counted: tuple[str, ...] = ()
    has_token: bool = True
    attacked_s: float = ATTACKED_S
    max_ratio: float = MAX_RATIO
    on_metrics: bool = False
    """Whether the port of metrics and probes is attacked."""
    has_control: bool = False
    """Whether quiet means that another service is attacked, because the attack keeps the machine busy as well."""


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
        stopped_by="max_calls_per_job 4096; 100 calls of a job are refused or ended per second, the others within 20 s",
        counted=("max_calls_per_job", "message_timeout"),
        attacked_s=REFUSED_S,
    ),
    *(
        Row(
            name=name,
            attack=f"3584 calls {what}, each renewed when it is refused",
            stopped_by="100 such calls of an address are refused per second, the others within 20 s",
            attacked_s=REFUSED_S,
            max_ratio=3.0,
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
    Row(
        name="scrapes",
        attack="8 clients that scrape without a pause, 400 idle connections to the port of metrics",
        stopped_by="64 connections, of which the oldest makes room, and 100 new ones per second",
        has_token=False,
        on_metrics=True,
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
    *(
        Row(
            name=f"{name}_readers_of_heavy_answers",
            attack=f"reports of 9 MB, steps and pages of a job, over {number} connections, against another service",
            stopped_by="two requests of a viewer in work; answers are made and sent in parts",
            max_ratio=3.0,
            has_control=True,
        )
        for name, number in (("four", 4), ("twenty", 20))
    ),
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[World]:
    """A Redis without planners, once for each attack whatever the number of rounds."""
    folder = tmp_path / "redis"
    folder.mkdir()
    with World(tmp_path, OneServer(folder), []) as world:
        yield world


def measure(row: Row, target: Target, wait: Callable[[], float], control: Target | None = None) -> Fairness:
    """Return how long `wait` takes before an attack, or beside the same attack on `control`, and beside the attack."""
    if control is None:
        quiet_s = collect(wait, 0.0)
    else:
        with attacking(row.name, control) as end:
            quiet_s = collect(wait, row.attacked_s)
            end()
    with attacking(row.name, target) as end:
        attacked_s = collect(wait, row.attacked_s)
        answers = end()
    return Fairness(
        attack=row.attack,
        stopped_by=row.stopped_by,
        num_waits=len(attacked_s),
        quiet_p99_s=p99_s(quiet_s),
        attacked_p99_s=p99_s(attacked_s),
        answers=answers,
    )


def collect(wait: Callable[[], float], min_s: float) -> list[float]:
    """Return `NUM_WAITS` waits, or as many as fit into `min_s`, after some to warm up."""
    for _ in range(NUM_WARM_UP):
        wait()
    waits_s: list[float] = []
    started_at = time.monotonic()
    while len(waits_s) < NUM_WAITS or time.monotonic() - started_at < min_s:
        waits_s.append(wait())
    return waits_s


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

        address = metrics_url(planner) if row.on_metrics else planner.address
        found = measure(row, Target(address=address, token=attacker if row.has_token else ""), wait)
    measured.append(found)
    check(found, row, planner, 'relibra_planner_limited_total{limit="%s"}')


@pytest.mark.parametrize("row", ON_STATUS, ids=lambda row: row.attack)
def test_S6_a_page_comes_in_time_beside_an_attack(
    measured: list[Fairness], place: World, row: Row, tmp_path: Path
) -> None:
    victim, attacker = create_tokens(place)
    with ExitStack() as started:

        def start(name: str) -> Service:
            folder = tmp_path / name
            folder.mkdir()
            service = Service("status", place.redis.url, folder, RELIBRA_AUTH="required", RELIBRA_METRICS_PORT="0")
            started.callback(service.stop)
            return service

        def get(path: str) -> float:
            started_at = time.monotonic()
            with closing(http.client.HTTPConnection(service.address.removeprefix("http://"), timeout=60)) as connection:
                connection.request("GET", path, headers={"authorization": f"Bearer {victim}"})
                response = connection.getresponse()
                assert response.read(), response.status
            assert response.status == 200
            return time.monotonic() - started_at

        def wait() -> float:
            healths_s.append(get("/healthz"))
            return get("/v1/jobs")

        service, control, healths_s = start("status"), None, list[float]()
        token = attacker if row.has_token else ""
        if row.has_control:
            with Loop() as run:
                run(fill_with_reports(place.redis.url))
            control = Target(address=start("control").address, token=token)
        found = measure(row, Target(address=service.address, token=token), wait, control)
        measured.append(found)
        check(found, row, service, 'relibra_status_refused_total{setting="%s"}')
        assert p99_s(healths_s) < MAX_HEALTH_S, f"broke S6 - {row.attack}: /healthz took {p99_s(healths_s):.1f} s"


async def fill_with_reports(redis_url: str) -> None:
    """Register both jobs, and let all ranks of the attacker's report a step; its loads are 9 MB of JSON."""
    load_ML = np.random.default_rng(0).integers(1000, 9999, (240, REPORTED_MODEL.num_layers))
    async with Store.open(redis_url) as store:
        await WatchedJob(store, "victim", model=MODEL, cluster=CLUSTER).register()
        job = WatchedJob(store, "attacker", model=REPORTED_MODEL, cluster=REPORTED_CLUSTER, num_micro_batches=1)
        await job.register()
        await job.collect(1)
        for phase in (Phase.RECOMPUTE, Phase.UPDATE):
            await job.report_loads(1, load_ML, phase=phase)


def check(found: Fairness, row: Row, service: Planner | Service, metric: str) -> None:
    """Check that the attack was stopped by what stops it, and that the victim did not wait long."""
    for limit in row.counted:
        assert figure(service, metric % limit) > 0, f"{limit} did not stop {row.attack}: {found.answers}"
    assert found.ratio < row.max_ratio, (
        f"broke S6 - {row.attack}: p99 {found.attacked_p99_s:.3f} s, {found.ratio:.1f} x"
    )
