"""The loads of the slowest rank in one cell: plain, planned, and equal. `products` times experts under them.

    python -m benchmarks.gpu.loads                    # writes benchmarks/gpu/loads.json; needs the solver

The routing is made up, and skewed like recorded routing on eight ranks (`SIGMA`). The file is kept, so that a machine
with a GPU needs no solver.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from relibra.atomic_file import write_atomically

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FILE = Path(__file__).with_name("loads.json")
NUM_EXPERTS = {"qwen3-30b-a3b": 128, "deepseek-v3": 256}
"""The presets, and how many experts they have; all of them choose eight."""
TOP_K, NUM_RANKS, SLOTS, TOKENS_PER_RANK = 8, 8, 2, 8192
SIGMA = 0.7
"""The spread of the logarithm of an expert's popularity, over a whole layer and again over one sequence."""

Loads = dict[str, dict[str, list[int]]]
"""The tokens of each expert on the slowest rank, by preset and by kind: plain, planned or equal."""


def read() -> Loads:
    """Return the loads that were kept."""
    loads: Loads = json.loads(FILE.read_text())
    return loads


def loads_of(num_experts: int, seed: int = 0) -> dict[str, list[int]]:
    """Plan one layer of four micro-batches, and return the loads of the slowest rank in the first one."""
    import numpy as np

    from relibra.planning import Cluster, Model, Schedule, StepLoad, check_plan
    from relibra.planning.solve import solve

    rng = np.random.default_rng(seed)
    cluster = Cluster(num_nodes=1, gpus_per_node=NUM_RANKS, redundant_slots=SLOTS)
    model = Model(num_layers=1, num_experts=num_experts, top_k=TOP_K)
    num_micro_batches = 4
    popularity_E = rng.lognormal(sigma=SIGMA, size=num_experts)
    counts_SLE = np.stack([_counts(rng, popularity_E)[None] for _ in range(num_micro_batches * NUM_RANKS)])
    schedule = Schedule.round_robin(len(counts_SLE), num_micro_batches, cluster)
    load = StepLoad.of(counts_SLE, schedule, cluster)
    plan = solve(load, schedule, model, cluster)
    check_plan(plan, load.load_MLE)
    plain_RE = load.load_MLE[0, 0].reshape(NUM_RANKS, -1)
    slowest = int(plan.rank_loads_MLR[0, 0].argmax())
    row_Q, layer_Q, _, rank_Q = plan.quotas.index_Q4.T
    of_slowest = plan.quotas.tokens_Q[(row_Q == 0) & (layer_Q == 0) & (rank_Q == slowest)]
    share = TOKENS_PER_RANK * TOP_K // plain_RE.shape[1]
    return {
        "plain": plain_RE[plain_RE.sum(axis=1).argmax()].tolist(),
        "planned": of_slowest.tolist(),
        "equal": [share] * plain_RE.shape[1],
    }


def _counts(rng: "np.random.Generator", popularity_E: "NDArray[np.float64]") -> "NDArray[np.int64]":
    """Return how often each expert was chosen by the tokens of one rank's sequence, whose text has its favourites."""
    chances_E = popularity_E * rng.lognormal(sigma=SIGMA, size=len(popularity_E))
    counts_E: NDArray[np.int64] = rng.multinomial(TOKENS_PER_RANK * TOP_K, chances_E / chances_E.sum())
    return counts_E


def main() -> None:
    """Plan every preset, and keep the loads."""
    loads = {preset: loads_of(num_experts) for preset, num_experts in NUM_EXPERTS.items()}
    write_atomically(FILE, (json.dumps(loads) + "\n").encode())


if __name__ == "__main__":
    main()
