"""Scenarios in which weights leave, or come in, under names by place and under logical names."""

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from harness.distributed import state
from harness.distributed.backups import by_place, equal, named_by_place, outputs, raised_by, ready, refusal, train
from harness.distributed.networks import Trained
from relibra.agent import Agent, Phase
from relibra.agent.homes import homes
from relibra.agent.homes.homes import Homes
from relibra.planning import Cluster

Result = dict[str, Any]


class Lazy(Mapping[str, Tensor]):
    """Tensors that are read when they are asked for, as from files, until the files are gone."""

    def __init__(self, tensors: dict[str, Tensor], *, num_reads: int | None = None) -> None:
        self._tensors, self._num_left = tensors, num_reads

    def __getitem__(self, name: str) -> Tensor:
        if self._num_left is not None:
            self._num_left -= 1
            if self._num_left < 0:
                raise OSError("stale file handle")
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


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

    def copy_while_a_step_begins() -> None:
        with agent.copying():
            agent.begin_step(1, Phase.RECOMPUTE)

    torn = refusal(copy_while_a_step_begins)
    with agent.restoring(snapshot):
        network.load_state_dict(copied, strict=False)
    back = equal(balanced.weights(), want)
    agent.end_step()
    # Every rank offers the experts it had before the reorder; together they are all experts.
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, by_name)
    whole = {name: each + 1 for of_rank in gathered for name, each in of_rank.items()}
    before = balanced.weights()
    incomplete = refusal(lambda: agent.load_logical({} if dist.get_rank() == 0 else whole))
    unreadable = refusal(lambda: agent.load_logical(Lazy(whole, num_reads=3 if dist.get_rank() == 0 else None)))
    unwritten = equal(balanced.weights(), before)
    own = sum(1 for _ in agent.logical_named_parameters())
    half_written = refusal(lambda: agent.load_logical(Lazy(whole, num_reads=own + 3 if dist.get_rank() == 0 else None)))
    mixed = refusal(agent.check_weights)
    agent.load_logical(Lazy(whole))
    loaded = balanced.weights()
    as_given = all(torch.equal(loaded[f"0/{name}/weight"], each.float().flatten()) for name, each in whole.items())
    accepted = refusal(lambda: agent.begin_step(2, Phase.RECOMPUTE))
    agent.detach()
    plain_again = refusal(network.state_dict) == refusal(optimizer.state_dict) == "not refused"
    left_behind = [name for name in ("state_dict", "load_state_dict") if name in vars(optimizer)]
    return {
        "messages": messages,
        "torn": torn,
        "incomplete": incomplete,
        "unreadable": unreadable,
        "half_written": half_written,
        "mixed": mixed,
        "accepted": accepted,
        "left_behind": left_behind,
        "right": {
            "untouched": untouched,
            "back": back,
            "unwritten": unwritten,
            "as_given": as_given,
            "plain_again": plain_again,
        },
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
        total = [each.detach().clone() for each in balanced.network.parameters()]
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
    with agent.at_original_places():  # as an average by position does
        for summed, each in zip(total, balanced.network.parameters(), strict=True):
            summed.add_(each.detach())
    names = [name for name, _ in torch.nn.Module.named_parameters(balanced.network)]
    by_position = named_by_place(balanced, dict(zip(names, total, strict=True)))
    dtype, now = total[0].dtype, balanced.weights()
    right["by position"] = equal(
        by_position, {name: (want[name].to(dtype) + now[name].to(dtype)).float() for name in want}
    )
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

    def restore(error: BaseException) -> None:
        with agent.restoring(agent.original_order):
            backups.restore("reference")
            if is_first:
                raise error

    half_restored = raised_by(lambda: restore(OSError("the disk is gone")))
    not_trained_on = refusal(lambda: agent.begin_step(1, Phase.UPDATE))
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
        "half_restored": half_restored,
        "not_trained_on": not_trained_on,
        "interrupted": interrupted,
        "num_moves": num_moves,
        "right": {"here": here, "again": again},
    }


SCENARIOS: dict[str, Callable[..., Result]] = {each.__name__: each for each in (state_dicts, exported, lost_in_export)}
