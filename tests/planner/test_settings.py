from pathlib import Path
from typing import Any

import pytest

from relibra.errors import Unsupported
from relibra.planner.settings import PlannerSettings

URL = "redis://redis:6379/0"


@pytest.mark.parametrize(
    "files", [{"tls_cert_file": Path("c")}, {"tls_key_file": Path("k")}, {"tls_client_ca_file": Path("ca")}]
)
def test_half_of_tls_is_refused(files: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=r"TLS|tls_cert_file"):
        PlannerSettings.load(redis_url=URL, **files)


def test_limits_of_the_store_are_those_that_were_set() -> None:
    limits = PlannerSettings.load(redis_url=URL, max_open_steps=3, max_step_size_bytes=7).store_limits
    assert (limits.max_open_steps, limits.max_step_size_bytes) == (3, 7)
