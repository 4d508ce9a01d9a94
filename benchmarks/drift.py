"""How far training moves the popularity of experts: published counts of OLMoE before SFT, after it, and after DPO.

    python -m benchmarks.drift OLMoE

`OLMoE` is a checkout of allenai/OLMoE (commit 357454f), which counted the experts of the same texts (Tulu v3.1) in
three models: `scripts/routing_output/*/expert_counts/tulu.pkl`, 16 layers of 64 experts, top 8. Writes
`results/drift.json`.

L layers, E experts.
"""

import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import results
from benchmarks.evaluation.page import markdown
from relibra.evaluation.baselines.eplb import eplb
from relibra.planning import Cluster, Model
from relibra.planning.load import imbalance

_IMBALANCES = ("imbalance_old", "imbalance_new")
_MODELS = ("olmoe", "olmoe-sft", "olmoe-dpo")
_ALLOWED = {("collections", "Counter"): Counter, ("numpy", "dtype"): np.dtype}


class _Counts(pickle.Unpickler):
    """Reads counters of numbers, and refuses everything else that a pickle might run."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "scalar":
            return np.int64(0).__reduce__()[0]
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"expected counts of experts, got {module}.{name}")
        return _ALLOWED[module, name]


def read_counts(path: Path) -> NDArray[np.int64]:
    """Return how often each expert was chosen, `[L, E]`."""
    with path.open("rb") as file:
        layers = _Counts(file).load()
    num_experts = 1 + max(int(expert) for counts in layers for expert in counts)
    return np.array([[int(counts[expert]) for expert in range(num_experts)] for counts in layers], dtype=np.int64)


def compare(before_LE: NDArray[np.int64], after_LE: NDArray[np.int64]) -> dict[str, float]:
    """Return how far popularity moved, and the imbalance of EPLB by the older counts on 8 ranks with 2 slots."""
    cluster = Cluster(num_nodes=1, gpus_per_node=8, redundant_slots=2)
    model = Model(num_layers=len(after_LE), num_experts=after_LE.shape[1], top_k=8)
    share_LE, was_LE = (counts / counts.sum(axis=1, keepdims=True) for counts in (after_LE, before_LE))
    old, new = (eplb(after_LE[None], model, cluster, seen[None]) for seen in (before_LE, after_LE))
    return {
        "sigma": float(np.log(share_LE / was_LE).std()),
        "imbalance_old": imbalance(old.rank_loads_MLR(cluster)),
        "imbalance_new": imbalance(new.rank_loads_MLR(cluster)),
    }


def drift() -> str:
    """Return the results on disk as a table."""
    lines = [
        (f"{row['from']} to {row['to']}", f"{row['sigma']:.2f}", *(f"{row[key]:.3f}" for key in _IMBALANCES))
        for row in results.read("drift")
    ]
    return markdown(("training", "sigma", "EPLB by the counts before", "EPLB by its own counts"), lines)


def main() -> None:
    """Compare each model with the one that it was trained from."""
    folder = Path(sys.argv[1]) / "scripts" / "routing_output"
    counts = {name: read_counts(folder / name / "expert_counts" / "tulu.pkl") for name in _MODELS}
    rows = [
        {"from": old, "to": new, **compare(counts[old], counts[new])}
        for old, new in (_MODELS[:2], _MODELS[1:], _MODELS[::2])
    ]
    results.show("drift", rows)
    results.write("drift", rows, texts="Tulu v3.1", num_ranks=8, redundant_slots=2)


if __name__ == "__main__":
    main()
