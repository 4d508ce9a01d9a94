import numpy as np

from benchmarks.peers.peer import same_cells
from relibra.evaluation.assignment import from_pieces
from relibra.planning import Cluster, Model

_HOME_LE = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1).identity_placement(
    Model(num_layers=2, num_experts=2, top_k=1)
)


def answer(*tokens: int):
    """Return the answer in which expert 0 has these tokens on ranks 0 and 1, in the first layer of the only row."""
    pieces = [[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 1]]
    return from_pieces(np.array(pieces), np.array([*tokens, 5]), _HOME_LE, num_rows=1)


def test_cells_are_the_same_if_all_ranks_have_the_same_tokens_of_all_experts():
    assert same_cells(answer(4, 6), answer(4, 6)) == 1.0
    assert same_cells(answer(4, 6), answer(5, 5)) == 0.5
    assert same_cells(answer(10, 0), answer(4, 6)) == 0.5
