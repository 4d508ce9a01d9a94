"""What a planner process tells of itself."""

import json
import urllib.request
from pathlib import Path

import pytest
from services_harness import CLUSTER, MODEL, PARAMS, Service, eventually, report_sequences

from relibra.planning import Schedule
from relibra.wire.client import PlannerClient

pytestmark = pytest.mark.integration


def test_metrics_logs_and_settings_of_a_planner_that_planned(redis_url: str, tmp_path: Path) -> None:
    planner = Service("planner", redis_url, tmp_path, RELIBRA_METRICS_PORT="0", RELIBRA_LOG_FORMAT="json")
    try:
        with PlannerClient(planner.address) as client:
            epoch = client.register_job("job", MODEL, CLUSTER, PARAMS)
            ids = report_sequences(planner.address, "job", 7)
            client.submit_schedule("job", 7, ids, Schedule.round_robin(8, 2, CLUSTER))
            client.fetch_plan("job", 7, MODEL, 0, wait_s=60)
        lines = [json.loads(line) for line in planner.log().splitlines() if line.startswith("{")]
        (published,) = [line for line in lines if line.get("version")]
        assert (published["job"], published["step"], published["epoch"]) == ("job", 7, f"{epoch:016x}")
        assert any("no authentication" in line["message"] for line in lines)
        (url,) = [
            line["message"].removeprefix("metrics on ") for line in lines if line["message"].startswith("metrics")
        ]

        def metrics() -> str:
            with urllib.request.urlopen(url, timeout=10) as response:
                return str(response.read().decode())

        eventually(lambda: 'relibra_planner_solves_total{outcome="published"} 1.0' in metrics())
        figures = metrics()
        for expected in (
            'relibra_planner_sequences_total{outcome="kept"} 8.0',
            'relibra_planner_call_seconds_count{method="FetchPlan"} 1.0',
            "relibra_planner_ready 1.0",
            "relibra_planner_event_loop_lag_seconds_count",
        ):
            assert expected in figures
    finally:
        assert planner.stop() == 0
