"""Scenarios with expert tensor parallelism: the ranks of an ETP group hold parts of the weights of the same experts.

gloo gathers and scatters equal parts only, and the tokens of ranks differ in number. `uneven_parts` replaces megatron's
two functions for that (core 0.16.1, tensor_parallel/mappings.py) by exchanges that give the same tensors.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import mappings
from torch import Tensor

from harness.distributed import checkpoints, gpt_job
from harness.distributed.gpt_batches import routing
from harness.distributed.gpt_model import RECOMPUTE
from harness.distributed.matrix import FUSED, GROUPED, balanced_job, compare, num_micro_batches
from relibra.agent import Phase
from relibra.agent.cells.visit import Visit
from relibra.planning import Cluster, Model, RankPlan
from relibra.planning.source_load import folded

Result = dict[str, Any]
_gather_even, _scatter_even = mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim


def _gather(tensor: Tensor, group: Any, output_split_sizes: Sequence[int] | None = None, *args: Any) -> Tensor:
    if output_split_sizes is None or group.size() == 1:
        even: Tensor = _gather_even(tensor, group, output_split_sizes, *args)
        return even
    gathered = tensor.new_empty(sum(output_split_sizes), *tensor.shape[1:])
    sent = torch.cat([tensor] * group.size())
    dist.all_to_all_single(gathered, sent, list(output_split_sizes), [len(tensor)] * group.size(), group=group)
    return gathered


def _reduce_scatter(tensor: Tensor, group: Any, input_split_sizes: Sequence[int] | None = None, *args: Any) -> Tensor:
    if input_split_sizes is None or group.size() == 1:
        even: Tensor = _scatter_even(tensor, group, input_split_sizes, *args)
        return even
    size = input_split_sizes[group.rank()]
    parts = tensor.new_empty(group.size() * size, *tensor.shape[1:])
    dist.all_to_all_single(parts, tensor.contiguous(), [size] * group.size(), list(input_split_sizes), group=group)
    return parts.view(group.size(), size, *tensor.shape[1:]).sum(dim=0)


@contextlib.contextmanager
def uneven_parts() -> Iterator[None]:
    with (
        mock.patch.object(mappings, "_gather_along_first_dim", _gather),
        mock.patch.object(mappings, "_reduce_scatter_along_first_dim", _reduce_scatter),
    ):
        yield


def trained(cluster: Cluster, **options: Any) -> Result:
    with uneven_parts():
        return compare(cluster, sharded=True, bf16=False, experts=GROUPED | FUSED, **options)


def replicas_of_one_part(cluster: Cluster) -> Result:
    """Mutation: let the second part of every replica stay empty."""
    plain = Visit.fetch

    def fetch(self: Visit) -> list[Tensor]:
        part = parallel_state.get_expert_tensor_parallel_rank()
        return [weight if part == 0 else torch.zeros_like(weight) for weight in plain(self)]

    with mock.patch.object(Visit, "fetch", fetch):
        return trained(cluster)


def _planned_routing(plan: RankPlan, model: Model) -> RankPlan:
    """Return the plan with the load that `routing` gives to both ranks that hold parts of the same experts."""
    counts_MLE = torch.stack(
        [
            torch.stack(
                [each.ravel().bincount(minlength=model.num_experts) for each in routing(model, plan.step, index)]
            )
            for index in range(num_micro_batches())
        ]
    )
    dist.all_reduce(counts_MLE, group=parallel_state.get_expert_tensor_parallel_group())
    return replace(plan, source_load_MLB=folded(counts_MLE.numpy()))


def routed_otherwise(cluster: Cluster) -> Result:
    """Run one step as planned. In the next, the ranks with the second parts route their tokens otherwise."""
    job, plans = balanced_job(cluster, sharded=True, bf16=False, **GROUPED, **FUSED)
    assert job.agent is not None
    plans.answers = {step: plan and _planned_routing(plan, job.model) for step, plan in plans.answers.items()}
    is_second = parallel_state.get_expert_tensor_parallel_rank() == 1

    def routed(model: Model, step: int, micro_batch: int) -> Tensor:
        planned_LTK = routing(model, step, micro_batch)
        return (planned_LTK + 1) % model.num_experts if step == 1 and is_second else planned_LTK

    with uneven_parts(), mock.patch.object(gpt_job, "routing", routed):
        for step in plans.answers:
            job.agent.begin_step(step, Phase.UPDATE)
            job.run(step, num_micro_batches(), forward_only=True)
            job.agent.end_step()
        job.agent.detach()
    return {"reported": [(each.routing.num_cells, each.routing.num_otherwise) for each in plans.reports]}


def checkpoint(cluster: Cluster) -> Result:
    with uneven_parts():
        return checkpoints.saved_after_reorder(cluster)


SCENARIOS: dict[str, Callable[[Cluster], Result]] = {
    "trained": functools.partial(trained, **RECOMPUTE["full"]),
    "checkpoint": checkpoint,
    "replicas_of_one_part": replicas_of_one_part,
    "routed_otherwise": routed_otherwise,
}
