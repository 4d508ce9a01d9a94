import numpy as np

from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.question import Question
from relibra.planning import Cluster
from relibra.planning.machines.hardware import hardware_of
from relibra.routing import RoutingTrace


def test_resampling_keeps_the_number_of_sequences_and_repeats_for_equal_seeds():
    length_S = np.arange(1, 41)
    question = Question(
        trace=RoutingTrace(
            routed_experts=np.zeros((length_S.sum(), 2, 1), dtype=np.uint8),
            offsets=np.concatenate([[0], np.cumsum(length_S)]),
            num_experts=8,
            domain=length_S.astype(str),
        ),
        model=MODELS["gpt-oss-20b"],
        hardware=hardware_of("h100"),
        cluster=Cluster(num_nodes=1, gpus_per_node=8, redundant_slots=0),
    )
    one, same, other = (question.resample(seed).trace for seed in (1, 1, 2))
    assert one.domain is not None
    assert np.diff(one.offsets).astype(str).tolist() == one.domain.tolist()  # whole sequences
    assert 15 < len(set(one.domain)) < 35  # 25 expected
    assert one.offsets.tolist() == same.offsets.tolist() != other.offsets.tolist()
