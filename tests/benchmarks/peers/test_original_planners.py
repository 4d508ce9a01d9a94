"""Every adapter calls its peer as the peer is published, and our reimplementations equal their originals."""

import pytest

from benchmarks.peers.peer import require_complete, same_cells
from benchmarks.peers.run import PEERS


@pytest.fixture(params=PEERS, ids=lambda peer: peer.name)
def peer(request, checkouts):
    missing = request.param.absence(checkouts)
    if missing:
        pytest.skip(
            f"{request.param.name}: {missing}: python -m benchmarks.peers.checkouts DIR, then RELIBRA_PEERS=DIR"
        )
    return request.param


def test_it_answers_for_all_tokens_of_two_steps(peer, checkouts, steps, question):
    model, cluster = question.model.model(), question.cluster
    planner = peer.start(checkouts, model, cluster)
    for step in steps:
        answer = planner(step.load.load_MLE)
        require_complete(peer.name, answer.assignment, step.load.load_MLE)
        assert answer.assignment.is_replica_Q.any()
    if peer.ours is not None:
        assert same_cells(answer.assignment, peer.ours(step.load.load_MLE, model, cluster)) == 1.0
