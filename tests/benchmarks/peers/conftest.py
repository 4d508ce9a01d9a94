"""The folder of checkouts, and a step that is small enough for any planner."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.question import Question
from relibra.evaluation.routing_statistics import RoutingStatistics
from relibra.evaluation.workload import Workload, drawn
from relibra.planning import Cluster
from relibra.planning.machines.hardware import HARDWARE
from relibra.routing import RoutingTrace

_MODEL = replace(MODELS["moonlight-16b"], num_layers=2)
_CLUSTER = Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=2)
_STATISTICS = RoutingStatistics(popularity_variance=0.6, domain_variance=0.1, sequence_variance=0.3)


@pytest.fixture(scope="session")
def checkouts() -> Path:
    """The folder that RELIBRA_PEERS names, or else one that does not exist, so that each test skips by name."""
    return Path(os.environ.get("RELIBRA_PEERS", "nowhere"))


@pytest.fixture(scope="session")
def question() -> Question:
    """Two layers of moonlight-16b on two nodes of four GPUs. Its trace is of one token, because `steps` are drawn."""
    one_token = np.tile(np.arange(_MODEL.top_k, dtype=np.uint8), (1, _MODEL.num_layers, 1))
    trace = RoutingTrace(routed_experts=one_token, offsets=np.array([0, 1]), num_experts=_MODEL.num_experts)
    return Question(trace=trace, model=_MODEL, hardware=HARDWARE["h100"], cluster=_CLUSTER)


@pytest.fixture(scope="session")
def steps() -> tuple[Workload, Workload]:
    """Two consecutive steps of three micro-batches."""
    before, now = (drawn(_STATISTICS, _MODEL, _CLUSTER, 3, 8192, seed=0, step=step) for step in (0, 1))
    return before, now
