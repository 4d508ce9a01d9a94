"""Scenarios in which restored weights run in cells with replicas."""

from typing import Any
from unittest import mock

from harness.distributed.backups import outputs, ready, refusal
from harness.distributed.networks import Trained
from harness.distributed.scenarios import relative
from relibra.agent import Agent, Phase
from relibra.planning import Cluster

Result = dict[str, Any]


def replicas_of_restored(cluster: Cluster, **attachment: Any) -> Result:
    """Run reference weights over cells with replicas, in a phase that has a host copy of the trained weights."""
    first = Trained(cluster)
    balanced, agent, backups = ready(cluster, replicate=True, **attachment)
    with agent.copying() as snapshot:
        backups.backup("actor")
    outcome = agent.begin_step(1, Phase.RECOMPUTE)

    def difference() -> float:
        with agent.micro_batch(0):
            got = outputs(balanced, 1)
        return relative(got, outputs(first, 1))

    of_actor = difference()
    backups.restore("actor")
    unannounced = refusal(difference) if outcome.num_moved_experts else ""
    with agent.restoring(agent.original_order):
        backups.restore("reference")
    of_reference = difference()
    with agent.restoring(snapshot):
        backups.restore("actor")
    agent.end_step()
    agent.detach()
    return {
        "num_replicas": outcome.num_replicas,
        "of_actor": of_actor,
        "of_reference": of_reference,
        "unannounced": unannounced,
    }


def stale_replicas(cluster: Cluster, **attachment: Any) -> Result:
    """Keep the host copy of the trained weights while others visit. The comparison must notice."""
    plain = Agent.restoring

    def restoring(self: Agent, snapshot: Any) -> Any:
        self._forget_replicas = lambda: None
        return plain(self, snapshot)

    with mock.patch.object(Agent, "restoring", restoring):
        return replicas_of_restored(cluster, **attachment)
