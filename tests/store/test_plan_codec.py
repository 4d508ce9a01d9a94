import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.services import CLUSTER, MODEL, count, routed_experts
from relibra.planning import Cluster, PlanParams, Schedule, StepLoad, check_plan
from relibra.planning.solve import solve
from relibra.store.plan_codec import PLAN_FIELDS, decode_plan, encode_plan

TWO_GROUPS = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1, num_ep_groups=2)


@settings(max_examples=20)
@given(seed=st.integers(0, 99), num_micro_batches=st.integers(1, 3), cluster=st.sampled_from([CLUSTER, TWO_GROUPS]))
def test_S3_a_solved_plan_comes_back_with_its_digest(seed: int, num_micro_batches: int, cluster: Cluster) -> None:
    counts_SLE = np.stack([count(routed_experts(seed + index, 5 + index)) for index in range(8)])
    schedule = Schedule.round_robin(8, num_micro_batches, cluster)
    load = StepLoad.of(counts_SLE, schedule, cluster)
    plan = solve(load, schedule, MODEL, cluster, PlanParams(min_tokens_per_replica=1))
    fields = encode_plan(plan)
    again = decode_plan({name: fields[name] for name in PLAN_FIELDS}, "a plan")
    check_plan(again, load.load_MLE)
    assert again.digest == plan.digest
