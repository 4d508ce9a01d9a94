"""The sizes of the demo: its model, cluster, micro-batches and sequences."""

from typing import NamedTuple

from relibra.planning import Cluster, Model

HIDDEN_SIZE = 64
MOE_HIDDEN_SIZE = 128
_EXPERT_PARAMETERS = 3 * HIDDEN_SIZE * MOE_HIDDEN_SIZE

MODEL = Model(
    num_layers=4,
    num_experts=16,
    top_k=2,
    expert_weight_size_bytes=4 * _EXPERT_PARAMETERS,
    # An expert's state is its fp32 weights and both Adam moments.
    expert_state_size_bytes=12 * _EXPERT_PARAMETERS,
)
CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=2)

NUM_MICRO_BATCHES = 4
SEQUENCES_PER_RANK = 4
"""Sequences of one source rank in one micro-batch. All of them answer one prompt."""
NUM_SEQUENCES = NUM_MICRO_BATCHES * CLUSTER.num_ranks * SEQUENCES_PER_RANK

LEARNING_RATE = 3e-3


class Registration(NamedTuple):
    """The planner that a job is registered with, the job's name there, and the token that its processes share."""

    planner_address: str
    job_id: str
    attempt: str
