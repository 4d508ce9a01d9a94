"""A training job in round numbers, so that a test can state times that are worked out by hand."""

from dataclasses import replace

import numpy as np

from relibra.evaluation.cell_time import Training
from relibra.evaluation.hardware import Hardware
from relibra.evaluation.model_presets import MODELS
from relibra.planning import Cluster, StepLoad

MODEL = replace(
    MODELS["qwen3-30b-a3b"],
    num_layers=1,
    num_experts=4,
    top_k=2,
    hidden_size=100,
    expert_ffn_size=10,
    attention_parameters=60_000,
    attention_width=0,
    vocabulary_size=0,
)
CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
HARDWARE = Hardware(
    name="round numbers",
    flop_per_us=6000.0,  # a token needs 2 x 3000 operations: one microsecond
    hbm_bytes_per_us=600.0,  # 6000 bytes of weights take ten microseconds
    intra_node_bytes_per_us=400.0,  # a token copy has 400 bytes, there and back
    inter_node_bytes_per_us=40.0,
    source="none",
)
TRAINING = Training(model=MODEL, hardware=HARDWARE, cluster=CLUSTER, sends_once_per_node=False)
HOME_LE = np.arange(4, dtype=np.int32)[None]
EVEN = StepLoad.of_sources(np.full((1, 1, 4, 4), 10))
