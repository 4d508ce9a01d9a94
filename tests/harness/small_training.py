"""A training job in round numbers, so that a test can state times that are worked out by hand."""

from dataclasses import replace

import numpy as np

from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.training import Training
from relibra.planning import Cluster, CostModel, StepLoad
from relibra.planning.machines.constants import Constants
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import Hardware

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
    flop_per_us=6000.0,
    hbm_bytes_per_us=600.0,
    nvlink=4,
    nvlink_bytes_per_us=400.0,
    network_bytes_per_us=40.0,
    num_sms=100,
    source="none",
    # Weights take ten microseconds to read, and a token one to compute, as the constants say without tiles.
    measured=CostModel(expert_tokens=(0, 1024), expert_us=(10, 1034), token_size_bytes=400),
)
CONSTANTS = Constants(
    flop_per_us=6000.0,  # a token needs 2 x 3000 operations: one microsecond
    hbm_bytes_per_us=600.0,  # 6000 bytes of weights take ten microseconds
    weight_bytes_per_us=400.0,  # a token copy has 400 bytes, there and back
    gradient_bytes_per_us=100.0,  # gradients have twice the bytes: they take eight times as long as weights
    state_inside_bytes_per_us=400.0,
    state_across_bytes_per_us=40.0,
    dispatch_inside_bytes_per_us=400.0,
    dispatch_across_bytes_per_us=40.0,
    hiding_share=1.0,
    weight_sm_share=0.0,
    gradient_sm_share=0.25,
    operation_us=0.0,
    driver_call_us=0.0,
    gather_us=20.0,
    wave_us=1000.0,
    tile_rows=128.0,
)
TRAINING = Training(
    model=MODEL, hardware=HARDWARE, cluster=CLUSTER, dispatcher=Dispatcher.ALLTOALL, constants=CONSTANTS
)
HOME_LE = np.arange(4, dtype=np.int32)[None]
EVEN = StepLoad.of_sources(np.full((1, 1, 4, 4), 10))
