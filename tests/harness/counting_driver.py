"""The driver that counts its calls, once for all tests of a process."""

from functools import cache

import pytest

from benchmarks.driver_stub import StubDriver
from relibra.errors import Unsupported


@cache
def counting_driver() -> StubDriver:
    """Return the driver; skip the test where it cannot be compiled."""
    try:
        return StubDriver()
    except Unsupported as error:
        pytest.skip(str(error))
