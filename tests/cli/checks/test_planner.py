from http import HTTPStatus

import pytest

from harness.services import MODEL
from relibra.cli.checks.finding import CheckResult
from relibra.cli.checks.planner import examine, judge, judge_version
from relibra.errors import Unavailable
from relibra.wire.client import PlannerClient
from relibra.wire.status import WaitsFor


def test_an_unreachable_planner_fails_with_a_fix():
    (found,) = examine("127.0.0.1:1", "1.0")
    assert found.verdict is CheckResult.FAILED
    assert "relibra planner" in found.fix


def test_the_port_of_a_status_service_is_recognised(answering):
    with answering(HTTPStatus.OK, b"{}") as (url, _):
        address = url.removeprefix("http://")
        (found,) = examine(address, "1.0")
        with (
            PlannerClient(address) as client,
            pytest.raises(Unavailable, match=r"does not speak gRPC.*7420 by default"),
        ):
            client.fetch_plan("job", 1, MODEL)
    assert found.reason.startswith(f"no planner answers at {address}: the server there does not speak gRPC")


def test_missing_tls_is_a_warning_beyond_loopback_only():
    def of_tls(address: str, *, has_tls: bool) -> CheckResult:
        return judge(address, "SERVING", "", has_tls=has_tls, has_token=True)[1].verdict

    assert of_tls("127.0.0.1:7420", has_tls=False) is CheckResult.OK
    assert of_tls("localhost:7420", has_tls=False) is CheckResult.OK
    assert of_tls("dns:///planner.example:7420", has_tls=False) is CheckResult.WARNING
    assert of_tls("dns:///planner.example:7420", has_tls=True) is CheckResult.OK


def test_a_wrong_ca_and_a_planner_without_redis_are_told_apart():
    (ca,) = judge("planner:7420", "UNREACHABLE", "Ssl handshake failed", has_tls=True, has_token=False)
    assert "RELIBRA_TLS_CA_FILE" in ca.fix
    (redis,) = judge("planner:7420", "NOT_SERVING", "", has_tls=True, has_token=False)
    assert "Redis" in redis.fix


def test_a_planner_whose_solver_warms_up_is_no_failure():
    (cold,) = judge("planner:7420", "NOT_SERVING", WaitsFor.SOLVER, has_tls=True, has_token=False)
    assert cold.verdict is CheckResult.WARNING
    assert "its solver warms up" in cold.reason


def test_another_or_unknown_version_is_a_warning():
    assert judge_version("1.0", "1.0").verdict is CheckResult.OK
    for theirs in ("0.9", None):
        assert judge_version(theirs, "1.0").verdict is CheckResult.WARNING
