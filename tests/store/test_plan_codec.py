import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.services import CLUSTER, MODEL, count, routed_experts
from relibra.planning import Cluster, PlanParams, Schedule, SourceShares, StepLoad, check_plan
from relibra.planning.plan import Basis
from relibra.planning.solve import solve
from relibra.planning.source_load import source_load
from relibra.store import plan_codec
from relibra.store.array_codec import PackedArray
from relibra.store.plan_codec import COMMON_FIELDS, decode_plan, encode_plan, share_field, source_field

TWO_GROUPS = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1, num_ep_groups=2)


@settings(max_examples=20)
@given(seed=st.integers(0, 99), num_micro_batches=st.integers(1, 3), cluster=st.sampled_from([CLUSTER, TWO_GROUPS]))
def test_S3_a_solved_plan_comes_back_with_its_digest(seed: int, num_micro_batches: int, cluster: Cluster) -> None:
    counts_SLE = np.stack([count(routed_experts(seed + index, 5 + index)) for index in range(8)])
    schedule = Schedule.round_robin(8, num_micro_batches, cluster)
    load = StepLoad.of(counts_SLE, schedule, cluster)
    plan = solve(load, schedule, MODEL, cluster, PlanParams(min_tokens_per_replica=1))
    fields = encode_plan(plan, load)
    assert set(fields) >= {*COMMON_FIELDS, *(share_field(rank) for rank in range(cluster.num_ranks))}
    expected = [
        PackedArray.from_bytes(fields[source_field(rank)], "a load").unpack() for rank in range(cluster.num_ranks)
    ]
    assert np.array_equal(np.stack(expected), source_load(load))
    again = decode_plan(fields, "a plan")
    check_plan(again, load.load_MLE)
    assert again.digest == plan.digest


@pytest.mark.parametrize("basis", Basis)
def test_S7_encoding_holds_the_shares_once_and_those_of_a_forecast_for_one_rank(basis: Basis) -> None:
    counts_SLE = np.stack([count(routed_experts(index, 6)) for index in range(8)])
    schedule = Schedule.round_robin(8, 1, CLUSTER)
    load = StepLoad.of(counts_SLE, schedule, CLUSTER)
    solved = solve(load, schedule, MODEL, CLUSTER, PlanParams(min_tokens_per_replica=1), basis=basis)
    shares = np.full((1024, CLUSTER.num_ranks), 300, dtype=np.int32)
    blocks = SourceShares(num_ranks=CLUSTER.num_ranks, blocks=lambda: iter([shares] * (1 << 9)))
    plan = replace(solved, shares=blocks)
    tracemalloc.start()
    fields = plan_codec._encode_shares(plan, 1 << 19)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    share_Y = PackedArray.from_bytes(fields[share_field(1)], "a share").unpack()
    assert share_Y.shape == (1 << 19,)
    assert (share_Y == 300).all()
    assert peak_bytes < 1.9 * (1 << 19) * 2 * CLUSTER.num_ranks
