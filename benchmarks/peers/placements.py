"""Peers that say which expert every physical slot holds: EPLB and its descendants in vLLM, SGLang and vLLM Ascend.

The copies of an expert share its tokens evenly, as these engines dispatch them. Every expert is a group of its own,
which is the best case for those that pack groups of experts to nodes.

M rows, L layers, E experts, R EP ranks, S slots of a rank, P physical experts.
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.originals import import_original
from benchmarks.peers.peer import Answer, Decides, Peer, Planner, on_cpu_clock
from relibra.evaluation.baselines.eplb import eplb, first_copies, share_evenly
from relibra.planning import Cluster, Model

_SGLANG_ALGORITHMS = ("deepseek", "deepseek_hierarchical", "deepseek_vec", "deepseek_vec_hierarchical")
"""All but `elasticity_aware`, which does what `deepseek` does while all ranks are up."""

Place = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""From loads `[M, L, E]` to the logical expert of every physical one, `[L, P]`, rank by rank."""


def _num_physical(model: Model, cluster: Cluster) -> int:
    return model.num_experts + cluster.num_ranks * cluster.redundant_slots


def _once_a_step(place: Place, model: Model, cluster: Cluster) -> Planner:
    def plan(load_MLE: NDArray[np.int64]) -> Answer:
        logical_LP, cpu_s = on_cpu_clock(lambda: place(load_MLE))
        home_LE = first_copies(logical_LP, model, cluster)
        assignment = share_evenly(load_MLE, logical_LP, home_LE, cluster)
        return Answer(assignment=assignment, cpu_s=cpu_s)

    return plan


def _eplb(folder: Path, model: Model, cluster: Cluster) -> Place:
    rebalance = import_original(folder, "EPLB.eplb").rebalance_experts

    def place(load_MLE: NDArray[np.int64]) -> NDArray[np.int64]:
        weight_LE, size = torch.from_numpy(load_MLE.sum(axis=0)), _num_physical(model, cluster)
        logical_LP, _, _ = rebalance(weight_LE, size, model.num_experts, cluster.num_nodes, cluster.num_ranks)
        return logical_LP.numpy()

    return place


def _vllm(folder: Path, model: Model, cluster: Cluster) -> Place:
    module = import_original(folder / "vllm", "vllm.distributed.eplb.policy.default")

    def place(load_MLE: NDArray[np.int64]) -> NDArray[np.int64]:
        weight_LE, size = torch.from_numpy(load_MLE.sum(axis=0)), _num_physical(model, cluster)
        groups, nodes, ranks = model.num_experts, cluster.num_nodes, cluster.num_ranks
        return module.DefaultEplbPolicy.rebalance_experts(weight_LE, size, groups, nodes, ranks).numpy()

    return place


def _sglang(algorithm: str, folder: Path, model: Model, cluster: Cluster) -> Place:
    module = import_original(folder / "sglang" / "python", "sglang.srt.eplb.eplb_algorithms")

    def place(load_MLE: NDArray[np.int64]) -> NDArray[np.int64]:
        size = _num_physical(model, cluster)
        logical_LP, _, _ = module.rebalance_experts(
            tokens_per_expert=torch.from_numpy(load_MLE).float(),
            num_physical_experts=size,
            num_local_physical_experts=size // cluster.num_ranks,
            num_groups=model.num_experts,
            num_nodes=cluster.num_nodes,
            algorithm=module.EplbAlgorithm[algorithm],
        )
        return logical_LP.numpy().astype(np.int64)

    return place


def _flashlb(folder: Path, model: Model, cluster: Cluster) -> Place:
    """Return vLLM Ascend's FlashLB, which sees every row as a stage, and starts at slots filled in order."""
    module = import_original(
        folder / "vllm-ascend",
        "vllm_ascend.eplb.core.policy.policy_flashlb",
        {
            "vllm.logger": {"logger": logging.getLogger("vllm")},
            "vllm_ascend.distributed.parallel_state": {
                "get_dynamic_eplb_group": lambda: SimpleNamespace(world_size=cluster.num_ranks)
            },
        },
    )
    policy = module.FlashLB()
    table_LRS = _slots_in_order(model, cluster)

    def place(load_MLE: NDArray[np.int64]) -> NDArray[np.int64]:
        load_MLRS = np.zeros((len(load_MLE), *table_LRS.shape), dtype=np.int64)
        for layer, table_RS in enumerate(table_LRS):  # it adds up the slots of an expert, so one may have all tokens
            expert_E, first_E = np.unique(table_RS, return_index=True)
            load_MLRS[:, layer].reshape(len(load_MLE), -1)[:, first_E] = load_MLE[:, layer, expert_E]
        _, changed, new_LRS = policy.rebalance_experts(table_LRS, load_MLRS)
        table_LRS[changed] = new_LRS[changed]
        return table_LRS.reshape(len(table_LRS), -1).astype(np.int64)

    return place


def _slots_in_order(model: Model, cluster: Cluster) -> NDArray[np.int64]:
    """Return a table `[L, R, S]`: the experts of plain expert parallelism, then copies of the next rank's experts."""
    share = model.num_experts // cluster.num_ranks
    slot_RS = np.arange(cluster.num_ranks)[:, None] * share + np.arange(share + cluster.redundant_slots)
    return np.repeat(slot_RS[None] % model.num_experts, model.num_layers, axis=0)


def _start(load: Callable[[Path, Model, Cluster], Place]) -> Callable[[Path, Model, Cluster], Planner]:
    return lambda folder, model, cluster: _once_a_step(load(folder, model, cluster), model, cluster)


_VLLM_FILE = "vllm/distributed/eplb/policy/default.py"
PLACEMENTS = (
    Peer(
        name="EPLB",
        checkout="EPLB",
        file="eplb.py",
        decides=Decides.EACH_STEP,
        start=_start(_eplb),
        ours=eplb,
    ),
    Peer(
        name="vLLM default",
        checkout="vllm",
        file=_VLLM_FILE,
        decides=Decides.EACH_STEP,
        start=_start(_vllm),
        ours=eplb,
    ),
    *(
        Peer(
            name=f"SGLang {algorithm}",
            checkout="sglang",
            file=f"python/sglang/srt/eplb/eplb_algorithms/{algorithm.removesuffix('_hierarchical')}.py",
            decides=Decides.EACH_STEP,
            start=_start(partial(_sglang, algorithm)),
            ours=eplb if algorithm == "deepseek_hierarchical" else None,
        )
        for algorithm in _SGLANG_ALGORITHMS
    ),
    Peer(
        name="vLLM Ascend FlashLB",
        checkout="vllm-ascend",
        file="vllm_ascend/eplb/core/policy/policy_flashlb.py",
        decides=Decides.EACH_STEP,
        start=_start(_flashlb),
    ),
)
"""In the order of tables."""
