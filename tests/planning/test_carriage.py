import numpy as np
import pytest

from harness.distributed.plans import random_homes
from relibra.planning import Cluster, Model
from relibra.planning.carriage import WAVE_US, Carriage, busiest
from relibra.planning.places import Move, Part, Placement
from relibra.planning.waves import BUFFER_BYTES, WaveSize, waves_of

_CARRIAGE = Carriage(expert_bytes=10_000, inside_bytes_per_us=400.0, across_bytes_per_us=50.0)


def test_a_wave_takes_as_long_as_its_busiest_link():
    """Rank 0 receives a whole expert from the other node, and half of one in its own. What stays on a rank is free."""
    wave = [Move(0, 0, 2, 0, 0, 0), Move(0, 1, 1, 0, 0, 1, Part(0, 1, 2)), Move(0, 2, 3, 0, 3, 1)]
    assert busiest([wave, []], gpus_per_node=2).tolist() == [[0.5, 1.0], [0.0, 0.0]]
    previous_LE, home_LE = np.array([[0, 1, 2, 3]]), np.array([[1, 0, 2, 3]])
    assert _CARRIAGE.us(home_LE, previous_LE, gpus_per_node=2) == 10_000 / 400 + WAVE_US
    home_LE[0, [0, 2]] = 2, 1
    home_LE[0, 1] = 0
    assert _CARRIAGE.us(home_LE, previous_LE, gpus_per_node=2) == 10_000 / 50 + WAVE_US


def test_experts_that_change_how_many_a_rank_has_travel_at_once() -> None:
    """Rank 0 sends two experts to the other node, and nothing comes back, as under EPLB."""
    previous_LE, home_LE = np.array([[0, 0, 1, 2, 3]]), np.array([[2, 3, 1, 2, 3]])
    assert _CARRIAGE.us(home_LE, previous_LE, gpus_per_node=2) == 2 * 10_000 / 50 + WAVE_US


@pytest.mark.parametrize("seed", range(5))
def test_the_price_is_that_of_the_waves_that_ranks_carry_out(seed):
    """The planner does not know the slots that experts have, but the waves have the same moves."""
    model, cluster = (
        Model(num_layers=3, num_experts=32, top_k=1),
        Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=0),
    )
    rng = np.random.default_rng(seed)
    here = Placement.identity(model, cluster).with_homes(random_homes(rng, model, cluster))
    target, expert_bytes = here.with_homes(random_homes(rng, model, cluster)), BUFFER_BYTES // 9
    size = WaveSize.of(BUFFER_BYTES, expert_bytes)
    executed = waves_of(here.moves_to(target), [range(3)], 0, size, cluster.gpus_per_node)
    carriage = Carriage(expert_bytes=expert_bytes, inside_bytes_per_us=400.0, across_bytes_per_us=50.0)
    times = (busiest(executed, 4) * expert_bytes / (400.0, 50.0)).max(axis=1)
    assert len(executed) > 3
    assert carriage.us(target.home_rank_LE, here.home_rank_LE, 4) == pytest.approx(times.sum() + WAVE_US * len(times))
