"""Without a CUDA driver one warning says that the kernels are missing."""

import warnings

import pytest

from relibra.kernels import driver


def test_a_device_without_kernels_warns_once() -> None:
    driver.device.cache_clear()
    with pytest.warns(RuntimeWarning, match="cannot be used on device 0"):
        assert driver.device(0) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert driver.device(0) is None
