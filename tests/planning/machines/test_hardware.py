import pytest

from relibra.errors import InvalidInput
from relibra.planning.machines.hardware import HARDWARE, hardware_of


def test_nvlink_of_a_generation_has_one_rate_where_it_is_not_cut():
    rates = {(each.nvlink, each.nvlink_bytes_per_us) for each in HARDWARE.values() if each.name != "h800"}
    assert rates == {(3, 300e3), (4, 450e3), (5, 900e3)}  # UltraEP's 706 to 715 GB/s in one direction fit only the last


def test_unknown_hardware_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInput, match="hardware: expected one of h100, h200, h800, a100, b200, gb200, got tpu"):
        hardware_of("tpu")
