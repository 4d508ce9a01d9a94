"""verl's engine with the plug-in, and plans for it."""

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from verl.workers.engine import EngineRegistry

from harness import tiny_qwen3_moe
from harness.distributed.plans import ScriptedPlans, random_plans
from harness.verl import engines
from relibra.planning import Cluster, Model

AWAY = "127.0.0.1:1"
"""The address of no planner."""
_MODEL = Model(num_layers=tiny_qwen3_moe.NUM_LAYERS, num_experts=tiny_qwen3_moe.NUM_EXPERTS, top_k=tiny_qwen3_moe.TOP_K)
_CLUSTER = Cluster(num_nodes=1, gpus_per_node=engines.RANKS, redundant_slots=1)


def with_plug_in() -> type[Any]:
    """Return the engine that verl's registry hands out for an actor since the plug-in was imported."""
    engine: type[Any] = EngineRegistry.get_engine_cls("language_model", "megatron")
    return engine


def moving(rank: int, job: str, num_passes: int) -> AbstractContextManager[object]:
    """Return the context in which engines on two ranks follow plans that move experts and make replicas in every pass.

    Args:
        rank: the rank of the caller.
        job: the name of the job.
        num_passes: the passes that replay routing.
    """
    engines.environment(AWAY, job)
    plans = {
        index: random_plans(index + 1, index, _MODEL, _CLUSTER, num_micro_batches=2)[rank]
        for index in range(num_passes)
    }
    return mock.patch.object(with_plug_in(), "plan_source", ScriptedPlans(plans))
