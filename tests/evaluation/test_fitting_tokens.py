"""What fits into a GPU's memory, by the size of EP groups."""

import numpy as np
import pytest

from relibra.evaluation.fitting_tokens import ep_groups, fitting_tokens
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.question import Question
from relibra.planning import Cluster
from relibra.planning.machines.hardware import HARDWARE
from relibra.planning.plan import Level
from relibra.routing import RoutingTrace

GIB = 2**30


def sizes(num_nodes: int, gpus_per_node: int, num_experts: int) -> list[tuple[int, int, int]]:
    largest = Cluster(num_nodes=num_nodes, gpus_per_node=gpus_per_node, redundant_slots=0)
    return [(group.num_ep_groups, group.num_nodes, group.gpus_per_node) for group in ep_groups(largest, num_experts)]


def test_ep_groups_keep_the_gpus_and_split_whole_nodes_or_inside_nodes():
    assert sizes(3, 8, 48) == [(1, 3, 8), (3, 1, 8), (6, 1, 4), (12, 1, 2), (24, 1, 1)]
    assert sizes(1, 6, 12) == [(1, 1, 6), (2, 1, 3), (3, 1, 2), (6, 1, 1)]
    assert sizes(2, 4, 8) == [(1, 2, 4), (2, 1, 4), (4, 1, 2), (8, 1, 1)]
    assert sizes(1, 1, 8) == [(1, 1, 1)]


@pytest.fixture
def question() -> Question:
    """Sequences that each prefer some experts, for gpt-oss-20b on 4 GPUs."""
    rng = np.random.default_rng(0)
    routed = [
        rng.permuted(np.tile(rng.permutation(32)[:8].astype(np.uint8), (60, 24, 1)), axis=2)[..., :4] for _ in range(40)
    ]
    trace = RoutingTrace(
        routed_experts=np.concatenate(routed), offsets=np.arange(0, 60 * 40 + 1, 60), num_experts=32, domain=None
    )
    cluster = Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=0)
    return Question(
        trace=trace, model=MODELS["gpt-oss-20b"], hardware=HARDWARE["h100"], cluster=cluster, num_micro_batches=2
    )


def test_M1_smaller_ep_groups_keep_more_weights_and_leave_less_room(question):
    fitting = list(fitting_tokens(question, Level.MICRO_BATCHES, 2, 20 * GIB))
    assert [tokens.ep_size for tokens in fitting if not tokens.recomputed] == [4, 2]
    large, small = (tokens for tokens in fitting if tokens.recomputed == "moe")
    # bf16 weights and fp32 gradients: 6 bytes for each parameter of 24 layers x 32 experts on 4 or 2 ranks.
    parameters = question.model.expert_parameters * 24 * 32
    assert (large.weights_bytes, small.weights_bytes) == (6 * parameters // 4, 6 * parameters // 2)
    assert small.weights_bytes - large.weights_bytes > 20 * GIB
    assert small.plain == small.relibra == 0
    assert 0 < large.plain < large.relibra


def test_M1_room_for_more_weights_lets_tokens_of_small_groups_fit(question):
    fitting = list(fitting_tokens(question, Level.MICRO_BATCHES, 2, 100 * GIB))
    room = {tokens.ep_size: tokens.relibra for tokens in fitting if not tokens.recomputed}
    assert 0 < room[1] < room[2] < room[4]
