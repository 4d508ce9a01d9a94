"""LLEP, which decides in every cell, after its router has run, and leaves homes where they are.

M rows, L layers, E experts.
"""

import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.originals import import_original
from benchmarks.peers.peer import Answer, Decides, Peer, Planner, on_cpu_clock
from relibra.evaluation.assignment import Known, from_pieces
from relibra.planning import Cluster, Model

_MIN_IMBALANCE, _MAX_TOKENS_FACTOR, _MIN_TOKENS = 1.3, 1.0, 1024
"""The settings of its paper: cells below this imbalance are left alone; alpha; the fewest tokens of a piece."""
_DECISION_US = 200.0
"""The time for which a layer waits for the decision: an assumption in its favour."""


def _llep(folder: Path, model: Model, cluster: Cluster) -> Planner:
    """Return LLEP with the settings of its paper: it leaves a cell alone whose imbalance is below 1.3."""
    module = import_original(
        folder / "LeastLoadedEP",
        "llep.gpt_oss_llep",
        {"transformers.utils": {"logging": SimpleNamespace(get_logger=logging.getLogger)}},
    )
    size, share = cluster.num_ranks, cluster.experts_per_rank(model)
    home_LE = cluster.identity_placement(model)

    def cell(load_E: torch.Tensor) -> dict[int, list[tuple[int, int, int]]] | None:
        if module.compute_gpu_imbalance_ratio(load_E, size, share) < _MIN_IMBALANCE:
            return None
        return module.compute_llep_lpt_plan(load_E, size, 0, share, _MAX_TOKENS_FACTOR, _MIN_TOKENS).lpt_plan

    def plan(load_MLE: NDArray[np.int64]) -> Answer:
        cells = torch.from_numpy(load_MLE).flatten(0, 1).unbind()
        answers, cpu_s = on_cpu_clock(lambda: [cell(load_E) for load_E in cells])
        pieces = []
        for index, answer in enumerate(answers):
            row, layer = divmod(index, load_MLE.shape[1])
            if answer is None:
                load_E = load_MLE[row, layer].tolist()
                answer = {expert: [(int(home_LE[layer, expert]), 0, load)] for expert, load in enumerate(load_E)}
            for expert, parts in answer.items():
                pieces += [(row, layer, expert, rank, end - begin) for rank, begin, end in parts]
        piece_X5 = np.array(pieces, dtype=np.int64)
        assignment = from_pieces(piece_X5[:, :4], piece_X5[:, 4], home_LE, len(load_MLE), Known.ROUTED, _DECISION_US)
        return Answer(assignment=assignment, cpu_s=cpu_s)

    return plan


CELLS = (
    Peer(
        name="LLEP",
        checkout="LeastLoadedEP",
        file="llep/gpt_oss_llep.py",
        decides=Decides.EACH_CELL,
        start=_llep,
    ),
)
"""In the order of tables."""
