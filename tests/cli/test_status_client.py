"""What the client of the status service makes of those who answer; what they answer is in tests/status."""

import ssl
from http import HTTPStatus

import pytest

from harness.certificates import Authority
from relibra.cli.status_client import StatusClient
from relibra.errors import Forbidden, InvalidInput, Unauthenticated, Unavailable
from relibra.wire.credentials import Credentials


def test_S6_a_token_opens_its_own_job_and_none_opens_nothing(watched):
    mine = StatusClient(watched.url, Credentials(token=watched.token))
    assert mine.get("v1", "jobs", "job")["job_id"] == "job"
    with pytest.raises(Forbidden, match="of job 'job' and may not see another"):
        mine.get("v1", "jobs", "another")
    with pytest.raises(Unauthenticated, match="relibra tokens create"):
        StatusClient(watched.url, Credentials()).get("v1", "jobs")


def test_parts_of_a_path_stay_parts_and_what_is_none_is_not_asked(answering):
    with answering(HTTPStatus.OK, b"[]") as (url, asked):
        assert StatusClient(f"{url}/", Credentials()).get("v1", "jobs", "a/b c", limit=3, before=None) == []
    assert asked == [("/v1/jobs/a%2Fb%20c?limit=3", None)]


def test_S6_a_token_is_not_carried_to_where_a_service_points(answering):
    with (
        answering(HTTPStatus.OK, b"{}") as (there, asked_there),
        answering(HTTPStatus.FOUND, b"", location=there) as (here, asked),
    ):
        assert StatusClient(here, Credentials(token="secret")).get("v1") == {}
    assert asked == [("/v1", "Bearer secret")]
    assert [token for _, token in asked_there] == [None]


@pytest.mark.parametrize("status", [HTTPStatus.OK, HTTPStatus.BAD_GATEWAY])
@pytest.mark.parametrize("body", [b"<html>", b"[", b"\xff"])
def test_what_is_no_status_service_is_unavailable(status, body, answering):
    with answering(status, body) as (url, _), pytest.raises(Unavailable, match=url):
        StatusClient(url, Credentials()).get("v1")


def test_nobody_there_says_how_to_start_one():
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1: .*refused; start one with `relibra up`"):
        StatusClient("http://127.0.0.1:1", Credentials()).get("v1")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "127.0.0.1:7421", "https://", ""])
def test_only_addresses_of_http_are_taken(url):
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
