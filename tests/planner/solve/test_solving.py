"""What a worker has compiled before its first solve."""

import subprocess
import sys

STEPS_AFTER_WARM_UP = """
import numpy as np
from relibra.planner.solve.solving import warm_up
from relibra.planning import Cluster, CostModel, Model, PlanParams, Schedule, StepLoad
from relibra.planning.jit import machine_code
from relibra.planning.plan import Level
from relibra.planning.packing.repack import repack
from relibra.planning.schedule import Freedom, PackingRules
from relibra.planning.solve import solve
code = warm_up()
assert sum(code), code
model = Model(num_layers=2, num_experts=16, top_k=2, expert_weight_size_bytes=1 << 20, expert_state_size_bytes=7 << 20)
rng = np.random.default_rng(0)
for cluster in (Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1, num_ep_groups=2),
                Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=2),
                Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=0)):
    previous = cluster.identity_placement(model)[:, ::-1].copy()
    for dtype in (np.uint8, np.uint16, np.uint32):
        counts = rng.zipf(1.5, (32, 2, 16)).clip(max=200).astype(dtype)
        schedule = Schedule.round_robin(32, 2, cluster)
        load = StepLoad.of(counts, schedule, cluster)
        for level in Level:
            for params in (PlanParams(), PlanParams(seed=7, min_tokens_per_replica=3), PlanParams(cost=CostModel()),
                           PlanParams(cost=CostModel(token_size_bytes=1e7)),
                           PlanParams(cost=CostModel(token_size_bytes=1e7, sends_once_per_node=True))):
                solve(load, schedule, model, cluster, params, previous, level=level)
        lengths = counts.sum(axis=(1, 2), dtype=np.int64)
        for rules in (PackingRules(), PackingRules(freedom=Freedom.RANKS), PackingRules(keeps_counts=True)):
            for params in (PlanParams(), PlanParams(cost=CostModel(token_size_bytes=1e7))):
                for current in (None, previous):
                    repack(counts, lengths, schedule, model, cluster, params, current, rules)
assert machine_code() == code, (code, machine_code())
"""


def test_after_its_warm_up_a_worker_compiles_nothing() -> None:
    # A process of its own: others have compiled more by now.
    done = subprocess.run([sys.executable, "-c", STEPS_AFTER_WARM_UP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_process_that_serves_loads_no_compiler() -> None:
    """It takes memory and time, and numba begins a folder of its own, into which shipped code is then not copied."""
    code = "import sys, relibra.planner.server; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
