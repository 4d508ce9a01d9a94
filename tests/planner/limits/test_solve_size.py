from dataclasses import replace

from relibra.planner.limits.solve_size import pack_size_bytes, solve_size_bytes
from relibra.planning import Cluster, CostModel, Model, PlanParams

MODEL = Model(num_layers=3, num_experts=32, top_k=2)
CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
COUNTS_SIZE_BYTES = 3 * 32
LOAD_SIZE_BYTES = 3 * 32 * 8
FREE = PlanParams()


def test_a_solve_holds_counts_of_sequences_and_loads_of_rows() -> None:
    got = solve_size_bytes(10, 2, MODEL, CLUSTER, FREE)
    assert got == 10 * COUNTS_SIZE_BYTES + 2 * LOAD_SIZE_BYTES


def test_dispatch_that_costs_time_adds_what_crosses_and_the_sums_by_source_node() -> None:
    priced = PlanParams(cost=CostModel(token_size_bytes=8192))

    def added(num_rows: int, cluster: Cluster) -> int:
        free, dear = (solve_size_bytes(10, num_rows, MODEL, cluster, params) for params in (FREE, priced))
        return dear - free

    two_nodes = 2 * LOAD_SIZE_BYTES // 3
    assert added(2, CLUSTER) == 2 * (LOAD_SIZE_BYTES + two_nodes + 3 * two_nodes)
    # Sums of 98 MB are too large to keep: only those of one layer exist at a time.
    assert added(64_000, CLUSTER) == 64_000 * (LOAD_SIZE_BYTES + two_nodes + two_nodes)
    assert added(2, replace(CLUSTER, num_nodes=1)) == 0
    # Every token of this model goes to both nodes anyway, where it is sent once to each.
    once = PlanParams(cost=CostModel(token_size_bytes=8192, sends_once_per_node=True))
    dense = replace(MODEL, top_k=MODEL.num_experts)
    free, dear = (solve_size_bytes(10, 2, dense, CLUSTER, params) for params in (FREE, once))
    assert free == dear


def test_packing_adds_the_loads_of_groups_of_sequences_and_rows() -> None:
    solve = solve_size_bytes(10, 2, MODEL, CLUSTER, FREE)
    assert pack_size_bytes(10, 2, MODEL, CLUSTER, FREE) == solve + (10 + 3 * 2) * 3 * 4 * 8
