"""Scenarios in which other weights pass through the modules that train, copied out and put back by name."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from harness.distributed import state
from harness.distributed.backups import Backups, equal, named_by_place, outputs, ready, refusal, reordered, train
from harness.distributed.networks import Trained
from harness.distributed.scenarios import M, attached
from relibra.agent import Agent, Phase
from relibra.agent.homes.homes import Homes
from relibra.planning import Cluster

Result = dict[str, Any]


def swapped(cluster: Cluster, **options: Any) -> Result:
    """Let reference weights pass through the modules between two reorders, and train on. Compare with plain training.

    The weights of the step travel to the host under one placement, and return under another.
    """
    plain, first = Trained(cluster, **options), Trained(cluster, **options)
    balanced, agent, backups = ready(cluster, **options)
    train(plain, 0)
    state.gather_parameters([balanced.ddp])
    with agent.copying() as snapshot:
        backups.backup("actor")
    moved = agent.begin_step(1, Phase.RECOMPUTE).num_moved_experts
    with agent.restoring(agent.original_order):
        backups.restore("reference")
    reference_weights = equal(balanced.weights(), first.weights())
    reference_output = torch.equal(outputs(balanced, 1), outputs(first, 1))
    not_trained_on = refusal(lambda: agent.begin_step(1, Phase.UPDATE))
    with agent.restoring(snapshot):
        backups.restore("actor")
    actor_weights = equal(balanced.weights(), plain.weights())
    train_again = refusal(lambda: agent.begin_step(1, Phase.UPDATE))
    for each in (plain, balanced):
        each.step(1, M, with_gradients=False)
    agent.end_step()
    trained_weights = equal(balanced.weights(), plain.weights())
    trained_moments = equal(balanced.moments(), plain.moments())
    agent.detach()
    return {
        "moved": moved,
        "not_trained_on": not_trained_on,
        "train_again": train_again,
        "right": {
            "reference_weights": reference_weights,
            "reference_output": reference_output,
            "actor_weights": actor_weights,
            "trained_weights": trained_weights,
            "trained_moments": trained_moments,
        },
    }


def swapped_by_place(cluster: Cluster, **options: Any) -> Result:
    """Do not bring restored experts to their places. The comparison must notice."""
    with (
        mock.patch.object(Homes, "bring_here"),
        mock.patch.object(Agent, "_check_weights"),
    ):
        return swapped(cluster, **options)


def written_behind(cluster: Cluster, **options: Any) -> Result:
    """Put weights back by name without telling the agent, and use them in every way. Each must be refused."""
    balanced, agent, backups = ready(cluster, **options)
    state.gather_parameters([balanced.ddp])
    backups.backup("actor")
    untouched = refusal(lambda: list(agent.logical_named_parameters()))
    backups.restore("actor")
    same_again = refusal(lambda: outputs(balanced, 1))
    agent.begin_step(1, Phase.RECOMPUTE)
    backups.restore("actor")
    messages = {
        "forward": refusal(lambda: outputs(balanced, 1)),
        "export": refusal(lambda: list(agent.logical_named_parameters())),
        "copying": refusal(lambda: agent.copying().__enter__()),
        "update": refusal(lambda: agent.begin_step(1, Phase.UPDATE)),
        "next step": refusal(lambda: agent.begin_step(2, Phase.RECOMPUTE)),
        "detach": refusal(agent.detach),
    }
    agent.accept_weights()
    accepted = refusal(lambda: agent.begin_step(2, Phase.RECOMPUTE))
    agent.end_step()
    # One rank writes one element; all ranks must refuse.
    with torch.no_grad():
        if dist.get_rank() == 0:
            parameter = agent.layers[0].experts.parameters[0][0]
            parameter.data.view(-1)[0] += 1
    if not agent_is_sharded(balanced):
        messages["one element on one rank"] = refusal(lambda: agent.begin_step(3, Phase.RECOMPUTE))
        messages["before a save"] = refusal(agent.check_weights)
    agent.accept_weights()
    known = refusal(agent.check_weights)
    agent.detach()
    return {
        "untouched": untouched,
        "same_again": same_again,
        "messages": messages,
        "accepted": accepted,
        "known": known,
    }


def agent_is_sharded(trained: Trained) -> bool:
    return bool(trained.ddp.ddp_config.use_distributed_optimizer)


def no_alarm(cluster: Cluster, **options: Any) -> Result:
    """Write by name before the first reorder, as a load of initial weights does, and train. Nothing may be refused."""
    balanced, _ = attached(cluster, reordered(cluster, 3) | {0: None}, **options)
    agent = balanced.agent
    assert agent is not None
    backups = Backups(balanced)
    backups.backup("first")
    train(balanced, 0)
    state.gather_parameters([balanced.ddp])
    with torch.no_grad():
        for parameter in balanced.network.parameters():
            parameter.add_(1e-3)
    before = refusal(lambda: agent.begin_step(1, Phase.RECOMPUTE))
    outputs(balanced, 1)
    agent.begin_step(1, Phase.UPDATE)
    balanced.step(1, M, with_gradients=False)
    agent.end_step()
    train(balanced, 2)
    agent.detach()
    return {"before": before}


def followed(cluster: Cluster, **options: Any) -> Result:
    """Let a framework back up and restore by tag as it does without relibra, over several reorders."""
    balanced, _ = attached(cluster, reordered(cluster, 4), **options)
    agent = balanced.agent
    assert agent is not None
    backups, first = Backups(balanced), balanced.weights()
    backups.backup("reference")
    agent.follow(backups)
    right: dict[str, bool] = {}
    last = first
    for step in range(3):
        agent.begin_step(step, Phase.RECOMPUTE)
        if step:
            backups.restore("reference")
            right[f"reference {step}"] = equal(balanced.weights(), first)
            backups.restore("old_actor")
            right[f"old actor {step}"] = equal(balanced.weights(), last)
            backups.restore("actor")
            right[f"actor {step}"] = equal(balanced.weights(), last)
        agent.begin_step(step, Phase.UPDATE)
        balanced.step(step, M, with_gradients=False)
        agent.end_step()
        state.gather_parameters([balanced.ddp])
        backups.backup("actor")
        backups.copy(src_tag="actor", dst_tag="old_actor")
        last = balanced.weights()
        right[f"export {step}"] = equal(named_by_place(balanced, backups.get("actor")), last)
    result = {"right": right, "too_late": refusal(lambda: agent.follow(backups))}
    agent.detach()
    return result


def written_in_update(cluster: Cluster, **options: Any) -> Result:
    """Write weights between `begin_step` and the optimizer's step on one rank, and after the step on one rank."""
    balanced, agent, _ = ready(cluster, **options)
    state.gather_parameters([balanced.ddp])

    @torch.no_grad()
    def write(value: float) -> None:
        if dist.get_rank() == 0:
            for parameters in agent.layers[1].experts.parameters:
                for parameter in parameters:
                    parameter.data.add_(value)

    agent.begin_step(1, Phase.UPDATE)
    write(1.0)
    messages = {"before the step": refusal(balanced.optimizer.step)}
    write(-1.0)
    agent.accept_weights()
    balanced.step(1, M, with_gradients=False)
    write(1.0)
    messages["after the step"] = refusal(lambda: agent.begin_step(2, Phase.RECOMPUTE))
    agent.accept_weights()
    agent.begin_step(2, Phase.RECOMPUTE)
    recompute = refusal(balanced.optimizer.step)
    agent.detach()
    return {"messages": messages, "recompute": recompute}


SCENARIOS: dict[str, Callable[..., Result]] = {
    each.__name__: each for each in (swapped, written_behind, written_in_update, no_alarm, followed, swapped_by_place)
}
