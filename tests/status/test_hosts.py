"""Names that requests may call the service by, where no token keeps pages of other sites out."""

import socket
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from relibra.errors import Forbidden
from relibra.status import create_app
from relibra.status.app import create_metrics_app
from relibra.status.hosts import KnownHosts
from relibra.status.settings import StatusSettings
from relibra.store import Store

SHOWING = ("/", "/jobs/job", "/jobs/job/steps/1", "/v1/jobs", "/v1/jobs/job/steps/1/plan", "/v1/events", "/metrics")


@pytest.mark.parametrize(
    "header",
    [
        "127.0.0.1:7421",
        "127.9.9.9",
        "[::1]:7421",
        "[::1]",
        "10.1.2.3:80",
        "localhost:7421",
        "LocalHost.",
        "relibra.localhost",
        "node7",
        "node7.cluster.:7421",
        "status:7421",
        f"{socket.gethostname()}:7421",
        None,
    ],
)
def test_names_of_the_service_are_known(header: str | None) -> None:
    KnownHosts.of("node7", "status, Node7.Cluster").check(header)


@pytest.mark.parametrize(
    "header",
    ["evil.example:7421", "127.0.0.1.evil.example", "localhost.evil.example", "node7.evil.example", "", "[evil]"],
)
def test_S6_other_names_are_refused_with_what_to_do(header: str) -> None:
    with pytest.raises(Forbidden, match="RELIBRA_ALLOWED_HOSTS"):
        KnownHosts.of("node7", "status").check(header)
    KnownHosts.of("node7", "*").check(header)


def test_S6_a_long_name_is_cut() -> None:
    with pytest.raises(Forbidden) as refusal:
        KnownHosts.of("127.0.0.1", "").check("evil" * 10_000)
    assert len(str(refusal.value)) < 2_000


@pytest.mark.parametrize("path", SHOWING)
def test_S6_a_page_of_another_site_sees_no_jobs(http: TestClient, job: object, path: str) -> None:
    answer = http.get(path, headers={"Host": "evil.example:7421"})
    assert answer.status_code == 403
    assert "evil.example" in answer.text
    assert "allowed_hosts" in answer.text
    assert 'relibra_status_refused_total{setting="allowed_hosts"} 1.0' in http.get("/metrics").text


def test_allowed_hosts_are_served_and_any_name_where_a_token_is_required(open_app: Callable[..., TestClient]) -> None:
    named = open_app("http://status.relibra:7421", allowed_hosts="status,status.relibra")
    assert named.get("/v1/jobs").status_code == 200
    assert open_app("http://relibra.example", auth="required").get("/v1/jobs").status_code == 401


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 403), ("0.0.0.0", 200)])
def test_S6_the_port_for_metrics_checks_names_on_loopback_only(redis_url: str, host: str, status: int) -> None:
    settings = StatusSettings(redis_url=redis_url, host=host, auth="required")
    context = create_app(Store.open(redis_url), settings).state.context
    with TestClient(create_metrics_app(context, settings), base_url="http://relibra.example") as http:
        assert http.get("/metrics").status_code == status
