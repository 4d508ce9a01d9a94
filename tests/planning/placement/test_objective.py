import numpy as np

from relibra.planning.placement.objective import Moves, objective
from relibra.planning.traffic import LayerTraffic


def test_a_split_costs_its_largest_groups_its_busiest_groups_and_its_moves() -> None:
    load_ME = np.array([[10, 20, 30, 40], [40, 10, 10, 10]])
    from_E, group_E = (np.array(each, dtype=np.int32) for each in ([0, 0, 1, 1], [0, 1, 1, 0]))
    assert objective(load_ME, group_E, 2) == 50 + 50
    # Three quarters of the tokens of every expert start on node 0.
    local_NEM = np.stack([3 * load_ME.T, load_ME.T]) * 100
    traffic = LayerTraffic(local_NEM=local_NEM, price=512, by_rank=True).of_nodes()
    # Three quarters of the tokens of node 1's experts come from node 0, and fewer go the other way.
    busiest = 3 * (50 + 20) * 100
    assert objective(load_ME * 400, group_E, 2, traffic) == 400 * 100 + busiest // 2
    moves = Moves(from_E=from_E, price=7)
    assert objective(load_ME, group_E, 2, None, moves) == 100 + 2 * 7
    assert objective(load_ME, from_E, 2, None, moves) == 70 + 50
