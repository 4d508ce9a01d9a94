from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from harness.certificates import Authority
from relibra.errors import InvalidInput
from relibra.planner.serve.certificate_validity import Validity, read_validity


@pytest.mark.parametrize("days", [-1, 1, 20_000])
def test_the_dates_are_those_of_the_first_certificate(tmp_path: Path, days: int) -> None:
    authority = Authority(tmp_path)
    cert_file, _ = authority.issue("planner", days=days, spiffe_id="spiffe://relibra/job/job/trainer")
    pem = cert_file.read_bytes()
    found = read_validity(b"comment\n" + pem + authority.file.read_bytes(), "cert.pem")
    expected = x509.load_pem_x509_certificate(pem)
    assert (found.not_before, found.not_after) == (expected.not_valid_before_utc, expected.not_valid_after_utc)


def test_expired_and_early_certificates_are_refused_with_the_date() -> None:
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)
    validity = Validity(not_before=start, not_after=end)
    validity.check("cert.pem", start)
    validity.check("cert.pem", end)
    with pytest.raises(InvalidInput, match=r"cert\.pem: .*renew it, got one that expired at 2026-03-01 00:00 UTC"):
        validity.check("cert.pem", end + timedelta(seconds=1))
    with pytest.raises(InvalidInput, match=r"check the clock .*, got one that is valid from 2026-01-01"):
        validity.check("cert.pem", start - timedelta(seconds=1))


@given(data=st.data())
def test_S7_any_bytes_are_dates_or_a_named_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "validity"
    if not folder.exists():
        folder.mkdir()
        Authority(folder).issue("planner")
    pem = bytearray((folder / "planner.pem").read_bytes())
    at = data.draw(st.integers(0, len(pem) - 1))
    pem[at] = data.draw(st.integers(0, 255))
    with suppress(InvalidInput):
        read_validity(bytes(pem[: data.draw(st.integers(at, len(pem)))]), "cert.pem")
