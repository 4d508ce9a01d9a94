"""A planner that gets a new certificate while it runs."""

import re
import ssl
import time
import urllib.request
from pathlib import Path

import pytest
from cryptography import x509

from harness.certificates import Authority
from harness.services import CLUSTER, MODEL, PARAMS, Service, eventually
from relibra.errors import InvalidInput
from relibra.planner.serve.certificates import CertificateFiles, check_dates
from relibra.wire.client import PlannerClient
from relibra.wire.credentials import Credentials


def common_name(address: str) -> str:
    """Return the common name of the certificate that a new connection gets."""
    host, _, port = address.rpartition(":")
    pem = ssl.get_server_certificate((host, int(port)), timeout=10)
    return x509.load_pem_x509_certificate(pem.encode()).subject.rfc4514_string()


@pytest.mark.integration
def test_a_new_certificate_is_taken_up_without_a_restart(redis_url: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = {name: authority.issue(name, days=days) for name, days in (("first", 0.4), ("second", 90))}
    cert_file, key_file = tmp_path / "tls.crt", tmp_path / "tls.key"

    def install(part: str, file: Path) -> None:
        (staged := tmp_path / "staged").write_bytes(files[part][file is key_file].read_bytes())
        staged.rename(file)

    install("first", cert_file)
    install("first", key_file)
    environment = {"RELIBRA_TLS_CERT_FILE": str(cert_file), "RELIBRA_TLS_KEY_FILE": str(key_file)}
    planner = Service("planner", redis_url, tmp_path, RELIBRA_METRICS_PORT="0", **environment)
    (metrics,) = re.findall(r"metrics on (\S+)", planner.log())

    def renewal_due() -> float:
        text = urllib.request.urlopen(metrics, timeout=60).read().decode()
        return float(re.findall(r"^relibra_planner_certificate_renewal_due_timestamp_seconds (\S+)$", text, re.M)[0])

    try:
        assert renewal_due() < time.time(), "2 of 2.4 days are over"
        with PlannerClient(planner.address, credentials=Credentials(ca_file=authority.file)) as client:
            epoch = client.register_job("job", MODEL, CLUSTER, PARAMS)
            assert common_name(planner.address) == "CN=first"
            # A new certificate without its key changes nothing.
            install("second", cert_file)
            assert common_name(planner.address) == "CN=first"
            assert "the certificate in use stays" in planner.log()
            install("second", key_file)
            assert common_name(planner.address) == "CN=second"
            assert renewal_due() > time.time() + 60 * 86_400
            assert client.register_job("job", MODEL, CLUSTER, PARAMS) == epoch
        eventually(lambda: "certificate read anew" in planner.log())
    finally:
        assert planner.stop() == 0


def test_files_that_are_missing_or_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (cert_file, key_file), (_, other_key_file) = authority.issue("one"), authority.issue("other")
    CertificateFiles(cert_file, key_file, authority.file).to_grpc()
    with pytest.raises(InvalidInput, match=r"TLS files: expected a certificate \(PEM\) and its key, got .*MISMATCH"):
        CertificateFiles(cert_file, other_key_file, None).to_grpc()
    expired = authority.issue("expired", days=-1)
    with pytest.raises(
        InvalidInput, match=r"expired\.pem: expected a certificate that is valid, .*, got one that expired at"
    ):
        CertificateFiles(*expired, None).to_grpc()
    with pytest.raises(InvalidInput, match=r"TLS file: .*nobody"):
        CertificateFiles(cert_file, tmp_path / "nobody.key", None).to_grpc()


def test_a_certificate_is_valid_from_its_first_moment_to_its_last(tmp_path: Path) -> None:
    cert_file, key_file = Authority(tmp_path).issue("planner", spiffe_id="spiffe://relibra/job/job/trainer")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert_file, key_file)
    dates = x509.load_pem_x509_certificate(cert_file.read_bytes())
    start, end = dates.not_valid_before_utc, dates.not_valid_after_utc
    for moment in (start, end):
        due = check_dates(server, cert_file, moment.timestamp())
        assert due == pytest.approx((end - (end - start) / 5).timestamp())
    files = CertificateFiles(cert_file, key_file, None)
    assert files.renewal_due() == due
    key_file.unlink()
    assert files.renewal_due() == due, "what was known last"
    with pytest.raises(InvalidInput, match=rf"renew it, got one that expired at {end:%Y-%m-%d %H:%M} UTC"):
        check_dates(server, cert_file, end.timestamp() + 1)
    with pytest.raises(InvalidInput, match=rf"check the clock .*, got one that is valid from {start:%Y-%m-%d %H:%M}"):
        check_dates(server, cert_file, start.timestamp() - 1)
