"""How the client of the status service handles responses; tests/status covers the responses themselves."""

import ssl
from concurrent import futures
from http import HTTPStatus

import grpc
import pytest

from harness.certificates import Authority
from relibra.cli.status_client import StatusClient
from relibra.errors import Forbidden, InvalidInput, Unauthenticated, Unavailable
from relibra.wire.credentials import Credentials


def test_S6_a_token_opens_its_own_job_only_and_without_one_nothing_opens(watched):
    mine = StatusClient(watched.url, Credentials(token=watched.token))
    assert mine.get("v1", "jobs", "job")["job_id"] == "job"
    with pytest.raises(Forbidden, match="for job 'job' and may not see other jobs"):
        mine.get("v1", "jobs", "another")
    with pytest.raises(Unauthenticated, match="relibra tokens create"):
        StatusClient(watched.url, Credentials()).get("v1", "jobs")


def test_path_parts_are_escaped_and_none_is_left_out_of_the_query(answering):
    with answering(HTTPStatus.OK, b"[]") as (url, asked):
        assert StatusClient(f"{url}/", Credentials()).get("v1", "jobs", "a/b c", limit=3, before=None) == []
    assert asked == [("/v1/jobs/a%2Fb%20c?limit=3", None)]


def test_S6_a_token_does_not_follow_a_redirect(answering):
    with (
        answering(HTTPStatus.OK, b"{}") as (there, asked_there),
        answering(HTTPStatus.FOUND, b"", location=there) as (here, asked),
    ):
        assert StatusClient(here, Credentials(token="secret")).get("v1") == {}
    assert asked == [("/v1", "Bearer secret")]
    assert [token for _, token in asked_there] == [None]


@pytest.mark.parametrize("status", [HTTPStatus.OK, HTTPStatus.BAD_GATEWAY])
@pytest.mark.parametrize("body", [b"<html>", b"[", b"\xff"])
def test_another_kind_of_service_is_unavailable(status, body, answering):
    with answering(status, body) as (url, _), pytest.raises(Unavailable, match=url):
        StatusClient(url, Credentials()).get("v1")


def test_the_port_of_a_planner_is_recognised():
    with futures.ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{port} is the port of a gRPC server.*7421 by default"):
            StatusClient(f"http://127.0.0.1:{port}", Credentials()).get("v1")
        server.stop(None)


def test_an_unreachable_service_says_how_to_start_one():
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1: .*refused; start one with `relibra up`"):
        StatusClient("http://127.0.0.1:1", Credentials()).get("v1")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "127.0.0.1:7421", "https://", ""])
def test_only_http_urls_are_accepted(url):
    with pytest.raises(InvalidInput, match="--url: expected http://host:port"):
        StatusClient(url, Credentials())


def test_tls_trusts_the_named_ca_only(tmp_path, answering):
    authority = Authority(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.issue("status"))
    with answering(HTTPStatus.OK, b"{}", tls) as (url, _):
        assert StatusClient(url, Credentials(ca_file=authority.file)).get("v1") == {}
        with pytest.raises(Unavailable, match="certificate verify failed"):
            StatusClient(url, Credentials()).get("v1")
