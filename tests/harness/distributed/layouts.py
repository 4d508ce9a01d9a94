"""The layouts: arrangements of ranks, each with the scenarios that run on it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.distributed import (
    fp8,
    graphs,
    host_waits,
    hot_path,
    integration_page,
    layers,
    mutations,
    planner_outage,
    reductions,
    replicas,
    slime,
    slime_plugin,
    timeline,
)
from relibra.planning import Cluster


@dataclass(frozen=True, kw_only=True)
class Layout:
    """An arrangement of ranks, and the scenarios that they run one after the other."""

    cluster: Cluster
    scenarios: dict[str, Callable[[Cluster], dict[str, Any]]]
    num_ranks: int = 4
    tensor_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    context_parallel_size: int = 1
    num_stages: int = 1
    num_chunks: int | None = None
    """The number of virtual stages per pipeline stage."""
    is_fatal: bool = False
    """Whether some ranks end in the last scenario."""


EP4 = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=2)
EP2_EDP2 = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=3, num_ep_groups=2)
EP2 = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
EP1 = Cluster(num_nodes=1, gpus_per_node=1, redundant_slots=2)
LAYOUTS = {
    "slime_ep4": Layout(cluster=EP4, scenarios=slime.SCENARIOS),
    "slime_ep2_edp2": Layout(
        cluster=EP2_EDP2,
        scenarios={name: functools.partial(each, sharded=True) for name, each in slime.SCENARIOS.items()},
    ),
    # A layout each, because slime replaces functions of torch.distributed for the rest of the process.
    "slime_plugin_forced": Layout(
        cluster=EP2_EDP2,
        scenarios={
            "forced": functools.partial(slime_plugin.forced, num_steps=2, sharded=True, options=slime_plugin.SEPARATE),
            "refused": slime_plugin.refused,
        },
    ),
    "miles_plugin_forced": Layout(
        cluster=EP2_EDP2,
        scenarios={
            "forced": functools.partial(
                slime_plugin.forced,
                num_steps=2,
                sharded=True,
                options=slime_plugin.SEPARATE,
                actor=slime_plugin.MilesActor,
            )
        },
    ),
    "slime_plugin_colocated": Layout(
        cluster=EP4,
        scenarios={
            "forced": functools.partial(slime_plugin.forced, num_steps=1, sharded=False, options=slime_plugin.COLOCATED)
        },
    ),
    "slime_plugin_packed": Layout(cluster=EP4, scenarios={"packed": slime_plugin.packed}),
    **{
        f"{framework}_plugin_{name}": Layout(
            cluster=cluster,
            scenarios={"planned": functools.partial(slime_plugin.planned, actor=actor, **options)},
            **parallel,
        )
        for framework, actor in (("slime", slime_plugin.SlimeActor), ("miles", slime_plugin.MilesActor))
        for name, (cluster, options, parallel) in slime_plugin.PARALLEL.items()
    },
    "layers_ep4": Layout(cluster=EP4, scenarios=layers.ONE_GROUP),
    "graphs_ep4": Layout(cluster=EP4, scenarios=graphs.SCENARIOS),
    "layers_ep2_edp2": Layout(cluster=EP2_EDP2, scenarios=layers.TWO_GROUPS),
    "layers_ep2_vpp": Layout(cluster=EP2, scenarios=layers.STAGES, num_stages=2, num_chunks=2),
    "gpt_replicas": Layout(cluster=EP4, scenarios=replicas.SCENARIOS | timeline.SCENARIOS | mutations.SCENARIOS),
    "services": Layout(cluster=EP4, scenarios={"planner_outage": planner_outage.planner_outage}),
    "hot_path": Layout(cluster=EP2, scenarios=hot_path.SCENARIOS, num_ranks=2),
    "one_rank": Layout(cluster=EP1, scenarios={"integration_page": integration_page.integration_page}, num_ranks=1),
    "gpt_ep2_edp2": Layout(cluster=EP2_EDP2, scenarios=reductions.SCENARIOS),
    "gpt_experts": Layout(cluster=EP2_EDP2, scenarios=mutations.EXPERTS_SCENARIOS | host_waits.SCENARIOS),
    "gpt_fp8": Layout(cluster=EP2_EDP2, scenarios=fp8.SCENARIOS),
}
