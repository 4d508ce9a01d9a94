"""Scenarios in which other weights pass through the modules that train, copied out and put back by name."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from harness.distributed import state
from harness.distributed.networks import BATCH, HIDDEN, MODEL, SEQUENCE, Trained, routing
from harness.distributed.plans import random_plans
from harness.distributed.scenarios import M, attached, relative
from relibra.agent import Agent, Phase
from relibra.agent.groups import Groups
from relibra.agent.homes import homes
from relibra.agent.homes.homes import Homes
from relibra.errors import RelibraError
from relibra.planning import Cluster, RankPlan

Result = dict[str, Any]


def by_place(trained: Trained) -> dict[str, Tensor]:
    """Return the parameters by place, as code that walks modules itself, which no hook of the agent notices."""
    return dict(torch.nn.Module.named_parameters(trained.network))


def named_by_place(trained: Trained, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights by place under the names that a framework would export, of all ranks."""
    first = trained.network.moe[0].local_expert_indices[0]
    exported = {
        re.sub(r"(local_experts\.)(\d+)", lambda m: f"{m[1]}{int(m[2]) + first}", n): w for n, w in weights.items()
    }
    return state.assembled(state.weights(exported.items()))


class Backups:
    """Copies of named parameters in host memory by tag, with the methods of slime's TensorBackuper."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained
        self._by_tag: dict[str, dict[str, Tensor]] = {}

    def backup(self, tag: str) -> None:
        self._by_tag[tag] = {name: each.detach().clone() for name, each in by_place(self._trained).items()}

    @property
    def backup_tags(self) -> list[str]:
        return list(self._by_tag)

    def get(self, tag: str) -> dict[str, Tensor]:
        return self._by_tag[tag]

    def copy(self, *, src_tag: str, dst_tag: str) -> None:
        self._by_tag[dst_tag] = {name: each.clone() for name, each in self._by_tag[src_tag].items()}

    @torch.no_grad()
    def restore(self, tag: str) -> None:
        for name, each in by_place(self._trained).items():
            each.copy_(self._by_tag[tag][name])


def reordered(cluster: Cluster, num_steps: int, *, replicate: bool = False) -> dict[int, RankPlan | None]:
    rank = dist.get_rank() % cluster.num_ranks
    return {
        step: random_plans(60 + step, step, MODEL, cluster, M, replicate=replicate)[rank] for step in range(num_steps)
    }


def ready(cluster: Cluster, *, replicate: bool = False, **options: Any) -> tuple[Trained, Agent, Backups]:
    """Return a job with a backup `reference` of the first weights, which has reordered and trained one step."""
    balanced, _ = attached(cluster, reordered(cluster, 4, replicate=replicate), **options)
    assert balanced.agent is not None
    backups = Backups(balanced)
    backups.backup("reference")
    train(balanced, 0)
    return balanced, balanced.agent, backups


def train(trained: Trained, step: int) -> None:
    if trained.agent is not None:
        assert trained.agent.begin_step(step, Phase.UPDATE).num_moved_experts or step == 0
    trained.step(step, M, with_gradients=False)
    if trained.agent is not None:
        trained.agent.end_step()


def outputs(trained: Trained, step: int) -> Tensor:
    hidden = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=torch.Generator().manual_seed(step))
    trained.network.eval()
    trained.set_routing(routing(step, 0, dist.get_rank()))
    with torch.no_grad():
        output: Tensor = trained.network(hidden.to(trained.config.params_dtype))
    trained.network.train()
    return output


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except RelibraError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def equal(got: dict[str, Tensor], want: dict[str, Tensor]) -> bool:
    return got.keys() == want.keys() and all(torch.equal(got[name], want[name]) for name in want)


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
    agent.accept_weights()
    agent.detach()
    return {"untouched": untouched, "same_again": same_again, "messages": messages, "accepted": accepted}


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


def state_dicts(cluster: Cluster, **options: Any) -> Result:
    """Read and write by place while experts are elsewhere, and by logical name."""
    balanced, agent, _ = ready(cluster, **options)
    network, optimizer = balanced.network, balanced.optimizer
    state.gather_parameters([balanced.ddp])
    want = balanced.weights()
    with agent.copying() as snapshot:
        copied = {name: each.clone() for name, each in network.state_dict().items() if torch.is_tensor(each)}
    by_name = {name: each.detach().clone() for name, each in agent.logical_named_parameters()}
    messages = {
        "state_dict": refusal(network.state_dict),
        "state_dict of ddp": refusal(balanced.ddp.state_dict),
        "state_dict of optimizer": refusal(optimizer.state_dict),
        "load_state_dict": refusal(lambda: network.load_state_dict(copied, strict=False)),
        "named_parameters": refusal(network.named_parameters),
        "named_parameters of ddp": refusal(balanced.ddp.named_parameters),
        "load_state_dict of optimizer": refusal(lambda: optimizer.load_state_dict({})),
    }
    untouched = equal(balanced.weights(), want)
    agent.begin_step(1, Phase.RECOMPUTE)
    with agent.restoring(snapshot):
        network.load_state_dict(copied, strict=False)
    back = equal(balanced.weights(), want)
    agent.end_step()
    # Every rank offers the experts it had before the reorder; together they are all experts.
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, by_name)
    whole = {name: each + 1 for of_rank in gathered for name, each in of_rank.items()}
    incomplete = refusal(lambda: agent.load_logical({}))
    agent.load_logical(whole)
    loaded = balanced.weights()
    as_given = all(torch.equal(loaded[f"0/{name}/weight"], each.float().flatten()) for name, each in whole.items())
    accepted = refusal(lambda: agent.begin_step(2, Phase.RECOMPUTE))
    agent.detach()
    plain_again = refusal(network.state_dict) == refusal(optimizer.state_dict) == "not refused"
    left_behind = [name for name in ("state_dict", "load_state_dict") if name in vars(optimizer)]
    return {
        "messages": messages,
        "incomplete": incomplete,
        "accepted": accepted,
        "left_behind": left_behind,
        "right": {"untouched": untouched, "back": back, "as_given": as_given, "plain_again": plain_again},
    }


def exported(cluster: Cluster, **options: Any) -> Result:
    """Read names by place inside `at_original_places`, which refuses any use of the weights, and train on."""
    balanced, agent, _ = ready(cluster, **options)
    want = balanced.weights()
    wrong = named_by_place(balanced, by_place(balanced))
    updater = SimpleNamespace(
        update_weights=lambda: named_by_place(balanced, dict(balanced.network.named_parameters()))
    )
    updater.update_weights = agent.at_original_places()(updater.update_weights)
    got = updater.update_weights()
    with agent.at_original_places():
        named = equal(balanced.weights(), want)
        messages = {
            "forward": refusal(lambda: outputs(balanced, 1)),
            "optimizer": refusal(balanced.optimizer.step),
            "state of the optimizer": refusal(balanced.optimizer.state_dict),
            "checkpoint": refusal(lambda: balanced.optimizer.sharded_state_dict({})),
            "begin_step": refusal(lambda: agent.begin_step(1, Phase.UPDATE)),
            "load_logical": refusal(lambda: agent.load_logical({})),
            "accept_weights": refusal(agent.accept_weights),
            "detach": refusal(agent.detach),
            "restoring": refusal(lambda: agent.restoring(agent.original_order).__enter__()),
        }
    right = {
        "in the body": equal(got, want),
        "under logical names": named,
        "again afterwards": equal(updater.update_weights(), want),
        "present order": equal(balanced.weights(), want),
    }
    plain = Trained(cluster, **options)
    train(plain, 0)
    train(plain, 1)
    train(balanced, 1)
    right["trained on"] = equal(balanced.weights(), plain.weights())
    agent.detach()
    return {"right": right, "differs_without": not equal(wrong, want), "messages": messages}


def lost_in_export(cluster: Cluster, **options: Any) -> Result:
    """Raise on one rank at the original places, move weights that have no memory, and leave the body without memory."""
    balanced, agent, backups = ready(cluster, **options)
    state.gather_parameters([balanced.ddp])
    with agent.copying() as snapshot:
        backups.backup("actor")
    want, is_first = balanced.weights(), dist.get_rank() == 0

    def export(error: BaseException) -> None:
        with agent.at_original_places():
            if is_first:
                raise error

    with mock.patch.object(homes.log, "exception") as logged:
        raised = raised_by(lambda: export(OSError("the engine is gone")))
    here = equal(balanced.weights(), want)
    for parameter in balanced.network.parameters():
        parameter.data = parameter.data.clone()  # memory of its own, which can be released
    storages = [each.untyped_storage() for each in balanced.network.parameters()]
    sizes = [storage.nbytes() for storage in storages]

    def resize(is_released: bool) -> None:
        for storage, size in zip(storages, sizes, strict=True):
            storage.resize_(0 if is_released else size)

    # The check in `at_original_places` is silent, so that the move itself has to notice.
    with mock.patch.object(Agent, "_check_weights"):
        resize(is_first)
        gone_before = refusal(lambda: export(OSError("not reached")))
        resize(False)
    with agent.restoring(snapshot):
        backups.restore("actor")
    again = equal(balanced.weights(), want)
    with mock.patch.object(Homes, "_move", return_value=(0, None)) as move:
        interrupted = raised_by(lambda: export(KeyboardInterrupt()))
        num_moves = move.call_count
    return {
        "raised": raised,
        "logged": [str(each) for each in logged.call_args_list],
        "gone_before": gone_before,
        "interrupted": interrupted,
        "num_moves": num_moves,
        "right": {"here": here, "again": again},
    }


def raised_by(action: Callable[[], object]) -> str:
    try:
        action()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


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


def slept(cluster: Cluster, **options: Any) -> Result:
    """Between two steps, release the memory of weights, and destroy and create all process groups. Then reorder."""
    attachment: dict[str, Any] = {"host_copy": True} if cluster.num_ep_groups == 1 else {}
    balanced, agent, backups = ready(cluster, replicate=True, **attachment, **options)
    state.gather_parameters([balanced.ddp])
    with agent.copying() as snapshot:
        backups.backup("actor")
    want = balanced.weights()
    for parameter in balanced.network.parameters():
        parameter.data = parameter.data.clone()  # memory of its own, which can be released
    storages = [each.untyped_storage() for each in balanced.network.parameters()]
    sizes = [storage.nbytes() for storage in storages]
    if dist.get_rank() == 0:
        for storage in storages:
            storage.resize_(0)
    one_asleep = refusal(lambda: agent.begin_step(1, Phase.RECOMPUTE))
    for storage in storages:
        storage.resize_(0)
    asleep = refusal(lambda: agent.begin_step(1, Phase.RECOMPUTE))
    for storage, size in zip(storages, sizes, strict=True):
        storage.resize_(size)
    with agent.restoring(snapshot):
        backups.restore("actor")
    rank, size, store = dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    no_groups = refusal(lambda: agent.begin_step(1, Phase.RECOMPUTE))
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=size)
    arrange(cluster)
    outcome = agent.begin_step(1, Phase.RECOMPUTE)
    moved = outcome.num_moved_experts
    if not moved:
        return {"reason": outcome.reason}
    woken = equal(balanced.weights(), want)
    with agent.restoring(snapshot):
        backups.restore("actor")
    restored = equal(balanced.weights(), want)
    agent.end_step()
    agent.detach()
    return {
        "asleep": asleep,
        "one_asleep": one_asleep,
        "no_groups": no_groups,
        "moved": moved,
        "right": {"woken": woken, "restored": restored},
    }


def deaf(cluster: Cluster) -> Result:
    """Keep transports on the groups that were destroyed. The reorder must fail."""
    with mock.patch.object(Groups, "on_rebuilt"):
        return slept(cluster)


def arrange(cluster: Cluster) -> None:
    parallel_state.initialize_model_parallel(
        expert_model_parallel_size=cluster.num_ranks, expert_tensor_parallel_size=1, distributed_timeout_minutes=1
    )


SCENARIOS: dict[str, Callable[..., Result]] = {
    each.__name__: each
    for each in (
        swapped,
        written_behind,
        written_in_update,
        no_alarm,
        state_dicts,
        exported,
        lost_in_export,
        followed,
        swapped_by_place,
    )
}
