"""The sum of realised loads says what the loads of all ranks together say. m micro-batches, L layers, R ranks."""

import numpy as np
import pytest

from relibra.planning import Cluster, imbalance
from relibra.planning.memory import NOT_KNOWN, ActivationMemory
from relibra.planning.peak import find_peak
from relibra.planning.realised_loads import RealisedLoads

CLUSTER = Cluster(num_nodes=1, gpus_per_node=3, redundant_slots=1, num_ep_groups=2)
MEMORY = ActivationMemory(kept_bytes=10, working_bytes=3, num_stages=2)
LOADS_GmLR = np.random.default_rng(0).integers(0, 99, (2, 4, 5, 3))


def summed(memory, *, is_kept=True):
    loads = RealisedLoads(CLUSTER, memory, is_kept=is_kept)
    for group, rank in np.random.default_rng(1).permutation(list(np.ndindex(2, 3))):
        loads.add(group, LOADS_GmLR[group, ..., rank])
    return loads


@pytest.mark.parametrize("memory", [MEMORY, NOT_KNOWN], ids=["known", "not known"])
def test_it_says_what_the_loads_together_say(memory):
    loads = summed(memory)
    together = LOADS_GmLR.reshape(8, 5, 3)
    peak = find_peak(together, memory, num_ep_groups=2)
    assert loads.has_one_shape
    assert loads.imbalance == imbalance(together)
    assert loads.overload == pytest.approx(peak.overload)
    assert loads.cum_overload == pytest.approx(peak.cum_overload)
    assert loads.peak_bytes == peak.size_bytes


def test_a_phase_without_backward_keeps_nothing():
    loads = summed(MEMORY, is_kept=False)
    assert loads.cum_overload is None
    assert loads.peak_bytes is None
    assert loads.overload > 1


def test_loads_of_different_shape_are_noticed():
    loads = RealisedLoads(CLUSTER, MEMORY, is_kept=True)
    loads.add(0, LOADS_GmLR[0, ..., 0])
    loads.add(0, LOADS_GmLR[0, :2, :, 1])
    assert not loads.has_one_shape
