"""The slots of a job that says nothing of slots."""

import pytest

from relibra.plugins.slots import MOST_SLOTS, SLOTS_ON_CPU, slots_that_fit

MIB = 1 << 20
GIB = 1 << 30


@pytest.mark.parametrize(
    ("weight_size_bytes", "free_bytes", "slots", "reason"),
    [
        pytest.param(9 * MIB, 20 * GIB, MOST_SLOTS, "306 MiB of the 20480 MiB", id="small-experts"),
        pytest.param(84 * MIB, 40 * GIB, MOST_SLOTS, "1008 MiB of the 40960 MiB", id="large-experts-arrive-in-turns"),
        pytest.param(84 * MIB, 16 * GIB, 1, "756 MiB of the 16384 MiB", id="room-for-one"),
        pytest.param(84 * MIB, 4 * GIB, 0, "more than 5% of the 4096 MiB", id="no-room"),
        pytest.param(84 * MIB, None, SLOTS_ON_CPU, "no GPU memory", id="no-gpu"),
        pytest.param(0, 40 * GIB, SLOTS_ON_CPU, "no known size", id="unknown-size"),
    ],
)
def test_slots_follow_the_free_memory(weight_size_bytes: int, free_bytes: int | None, slots: int, reason: str) -> None:
    found, why = slots_that_fit(weight_size_bytes, 8, free_bytes)
    assert found == slots
    assert reason in why


def test_more_free_memory_never_means_fewer_slots() -> None:
    found = [slots_that_fit(84 * MIB, 8, free * GIB)[0] for free in range(0, 80, 2)]
    assert found == sorted(found)
    assert set(found) == {0, 1, 2}
