"""What copies beside a product cost, from times that would come from a device."""

import pytest

from benchmarks.gpu.beside import row, says


@pytest.mark.parametrize(
    ("both", "hidden_share"),
    [((1000.0, 400.0), 1.0), ((1200.0, 600.0), 0.5), ((1400.0, 400.0), 0.0), ((2000.0, 2000.0), 0.0)],
)
def test_the_shorter_work_is_hidden_as_far_as_both_end_sooner_than_in_turn(
    both: tuple[float, float], hidden_share: float
) -> None:
    """Products take 1000 us alone, and copies 400."""
    assert row("copies", 1000.0, 400.0, both)["hidden_share"] == pytest.approx(hidden_share)


def test_every_kind_of_copy_has_a_line() -> None:
    assert list(says({"rows": [row("multiprocessors", 1000.0, 400.0, (1200.0, 600.0))]})) == [
        "multiprocessors: 50% of the shorter lies beside the longer; products 1000 us alone, 1200 beside copies; "
        "copies 400 us alone, 600 beside products"
    ]
