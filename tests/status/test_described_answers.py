"""Every answer of the API is as its OpenAPI description says."""

from collections import Counter
from pathlib import Path

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings

from harness.services import Loop, Service
from harness.watched_job import WatchedJob
from relibra.store import ALL_JOBS, Role, Store


@pytest.mark.long
@pytest.mark.integration
def test_every_answer_is_as_described(
    http: TestClient, job: WatchedJob, store: Store, run: Loop, redis_url: str, tmp_path: Path
) -> None:
    _, token = run(store.create_token(ALL_JOBS, Role.VIEWER))
    api = http.get("/openapi.json").json()
    del api["paths"]["/v1/events"]  # a stream of ten minutes; tests/status/test_live.py covers it
    num_good: Counter[str] = Counter()
    service = Service("status", redis_url, tmp_path, RELIBRA_AUTH="required")
    try:
        for operation in schemathesis.openapi.from_dict(api).get_all_operations():
            _check(operation.ok(), service.address, token, num_good)
    finally:
        service.stop()
    assert num_good.keys() == api["paths"].keys(), "every endpoint returned 200 at least once"


def _check(operation: schemathesis.APIOperation, address: str, token: str, num_good: Counter[str]) -> None:
    @given(case=operation.as_strategy())
    @settings(max_examples=10, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(case: schemathesis.Case) -> None:
        bounds = {"step": 3, "row": 2, "layer": 3, "expert": 9, "rank": 4}
        for name in case.path_parameters:
            # Random numbers would never hit an existing step or cell; numbers in this range hit and miss.
            case.path_parameters[name] = case.path_parameters[name] % bounds[name] if name in bounds else "job"
        response = case.call(base_url=address, headers={"Authorization": f"Bearer {token}"})
        case.validate_response(response)
        num_good[operation.path] += response.status_code == 200

    check()
