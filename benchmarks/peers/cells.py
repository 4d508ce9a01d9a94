"""Peers that decide in every cell, after its router has run, and leave homes where they are: LLEP and UltraEP.

M rows, L layers, E experts, P physical experts, C cells, X pieces.
"""

import ctypes
import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.answers import Answer
from benchmarks.peers.originals import import_original
from benchmarks.peers.peer import Decides, Peer, Planner, on_cpu_clock
from relibra.evaluation import baselines
from relibra.evaluation.assignment import Known, from_pieces
from relibra.evaluation.baselines.eplb import share_evenly
from relibra.evaluation.baselines.llep import DECISION_US as LLEP_US
from relibra.evaluation.baselines.llep import MAX_TOKENS_FACTOR, MIN_IMBALANCE, MIN_TOKENS
from relibra.evaluation.baselines.ultraep import DECISION_US as ULTRAEP_US
from relibra.planning import Cluster, Model

_LIBRARY = "placement_cpu.so"
"""A shared library of UltraEP's `csrc/kernels/legacy/placement_cpu.cpp` that works on host memory. UltraEP builds its
code only for GPUs, and this repository does not build it: put a library of your own there."""
_PLACEMENT = "_ZN8ultra_ep7kernels6legacy15solve_placementEPKiS3_PiS4_S4_S4_S4_S4_P11CUstream_stiiiiiifibbfi"
"""`ultra_ep::kernels::legacy::solve_placement`, as declared in `csrc/kernels/api.cuh`."""
_PLACEMENT_TYPES = (
    *(ctypes.c_void_p,) * 9,
    *(ctypes.c_int,) * 6,
    *(ctypes.c_float, ctypes.c_int, ctypes.c_bool, ctypes.c_bool, ctypes.c_float, ctypes.c_int),
)
_SETTINGS = (1.0, 1024, False, True, 0.01, 1)
"""`balance_threshold` by its default; this placement reads none of the others."""


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
        if module.compute_gpu_imbalance_ratio(load_E, size, share) < MIN_IMBALANCE:
            return None
        return module.compute_llep_lpt_plan(load_E, size, 0, share, MAX_TOKENS_FACTOR, MIN_TOKENS).lpt_plan

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
        assignment = from_pieces(piece_X5[:, :4], piece_X5[:, 4], home_LE, len(load_MLE), Known.ROUTED, LLEP_US)
        return Answer(assignment=assignment, cpu_s=cpu_s)

    return plan


def _ultraep(folder: Path, model: Model, cluster: Cluster) -> Planner:
    """Return UltraEP's placement on the CPU, which its quota planner on the GPU has replaced.

    It gives an expert copies inside the node by load per copy, and they share the tokens evenly. The time contains its
    call through ctypes. The wait for the decision is the published one of UltraEP's planner on the GPU.
    """
    place = ctypes.CDLL(str(folder / "UltraEP" / _LIBRARY))[_PLACEMENT]
    place.restype, place.argtypes = None, _PLACEMENT_TYPES
    home_LE, share = cluster.identity_placement(model), cluster.experts_per_rank(model)
    num_experts, num_ranks, slots = model.num_experts, cluster.num_ranks, cluster.redundant_slots
    unread = [np.empty(num_experts * num_ranks, dtype=np.int32) for _ in range(5)]  # what follows from the placement
    settings = (num_experts, num_ranks, share, slots, cluster.gpus_per_node, num_ranks, *_SETTINGS)

    def plan(load_MLE: NDArray[np.int64]) -> Answer:
        load_CE = np.ascontiguousarray(load_MLE.reshape(-1, num_experts), dtype=np.int32)
        logical_CP = np.empty((len(load_CE), num_experts + num_ranks * slots), dtype=np.int32)
        cells = [
            (load_E.ctypes.data, logical_P.ctypes.data) for load_E, logical_P in zip(load_CE, logical_CP, strict=True)
        ]

        unread_pointers = [array.ctypes.data for array in unread]

        def place_all() -> None:
            for load, logical in cells:
                place(load, None, logical, *unread_pointers, None, *settings)

        _, cpu_s = on_cpu_clock(place_all)
        logical_MLP = logical_CP.reshape(*load_MLE.shape[:2], -1)
        assignment = share_evenly(load_MLE, logical_MLP, home_LE, cluster, Known.ROUTED, ULTRAEP_US)
        return Answer(assignment=assignment, cpu_s=cpu_s)

    return plan


CELLS = (
    Peer(
        name="LLEP",
        checkout="LeastLoadedEP",
        file="llep/gpt_oss_llep.py",
        decides=Decides.EACH_CELL,
        start=_llep,
        ours=baselines.llep,
    ),
    Peer(
        name="UltraEP on the CPU",
        checkout="UltraEP",
        file="csrc/kernels/legacy/placement_cpu.cpp",
        library=_LIBRARY,
        decides=Decides.EACH_CELL,
        start=_ultraep,
    ),
)
"""In the order of tables."""
