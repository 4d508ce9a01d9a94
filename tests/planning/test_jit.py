import numpy as np

from relibra.planning.jit import next_random


def test_S8_the_published_sequence_of_seed_0():
    state = np.zeros(1, dtype=np.uint64)
    assert [int(next_random(state)) for _ in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
