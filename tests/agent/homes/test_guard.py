"""The guard notices every change of an expert that it was not told of, and raises no other alarm."""

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from relibra.agent.experts import SequentialExperts
from relibra.agent.homes.guard import WeightGuard, _sum_of_words
from relibra.agent.homes.optimizer_state import OptimizerState, Shard
from relibra.errors import RelibraError


def guarded(
    *, is_armed: bool = True, state: OptimizerState | None = None, device: str = "cpu", has_moved: bool = False
) -> tuple[WeightGuard, SequentialExperts]:
    module = nn.Module()
    module.local_experts = nn.ModuleList(nn.Linear(3, 5, dtype=torch.bfloat16) for _ in range(2))
    experts = SequentialExperts(module)
    guard = WeightGuard({0: experts}, state or OptimizerState([]), torch.device(device), lambda: has_moved)
    guard.is_armed = is_armed
    guard.note_trained()
    return guard, experts


def swap(experts: SequentialExperts) -> None:
    first, second = (parameters[0] for parameters in experts.parameters)
    kept = first.detach().clone()
    with torch.no_grad():
        first.copy_(second)
        second.copy_(kept)


def swap_uncounted(experts: SequentialExperts) -> None:
    first, second = (parameters[0].data for parameters in experts.parameters)
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)


def change_one_bit(experts: SequentialExperts) -> None:
    experts.parameters[1][1].data.view(torch.int16)[4] ^= 1


@pytest.mark.parametrize("write", [swap, change_one_bit])
def test_S9_a_write_is_noticed(write: Callable[[SequentialExperts], None]) -> None:
    guard, experts = guarded()
    guard.check_trained()
    write(experts)
    for check in (guard.check_trained, guard.check_known, lambda: guard.check_layer(0)):
        with pytest.raises(RelibraError, match=r"MoE layer 0 at positions .* were written behind the agent's back"):
            check()
    guard.note_trained()
    guard.check_trained()


@pytest.mark.parametrize("write", [swap, change_one_bit])
def test_S9_a_write_to_frozen_experts_that_no_rank_updates_is_noticed(
    write: Callable[[SequentialExperts], None],
) -> None:
    guard, experts = guarded(state=OptimizerState([], lambda _: None), is_armed=False)
    for parameters in experts.parameters:
        for each in parameters:
            each.requires_grad_(False)
    guard.is_armed = True
    guard.note_trained()
    write(experts)
    with pytest.raises(RelibraError, match="written behind"):
        guard.check_trained()


@pytest.mark.parametrize("is_planned", [True, False])
def test_S9_a_forward_compares_the_weights_of_a_layer_that_torch_saw_a_write_to(is_planned: bool) -> None:
    guard, experts = guarded()
    guard.check_forward(0, is_planned=is_planned)
    swap(experts)
    with pytest.raises(RelibraError, match="written behind"):
        guard.check_forward(0, is_planned=is_planned)
    swap(experts)
    guard.check_forward(0, is_planned=is_planned)


def test_S9_once_experts_have_moved_an_unplanned_forward_notices_writes_that_torch_does_not_count() -> None:
    guard, experts = guarded(has_moved=True)
    guard.check_forward(0, is_planned=False)
    swap_uncounted(experts)
    with pytest.raises(RelibraError, match=r"MoE layer 0 at positions \[0, 1\] .* written behind"):
        guard.check_forward(0, is_planned=False)
    guard.note_visiting()
    guard.check_forward(0, is_planned=False)
    swap_uncounted(experts)
    guard.check_forward(0, is_planned=False)


@pytest.mark.parametrize(("has_moved", "is_planned"), [(False, False), (True, True)])
def test_a_forward_reads_no_weights_while_experts_are_at_home_or_its_phase_has_begun_with_a_check(
    has_moved: bool, is_planned: bool
) -> None:
    guard, experts = guarded(has_moved=has_moved)
    swap_uncounted(experts)
    guard.check_forward(0, is_planned=is_planned)
    with pytest.raises(RelibraError, match="written behind"):
        guard.check_trained()


def test_S9_restored_weights_are_known_but_not_trained_on() -> None:
    guard, experts = guarded()
    swap(experts)
    guard.note_visiting()
    guard.check_known()
    with pytest.raises(RelibraError, match="written behind"):
        guard.check_trained()
    swap(experts)
    guard.check_trained()


def test_a_step_that_moves_nothing_is_not_read_twice() -> None:
    guard, experts = guarded()
    with mock.patch.object(guard, "_get_checksums", wraps=guard._get_checksums) as taken:
        guard.check_trained()
        guard.note_begun(has_moved=False)
        assert taken.call_count == 1
        guard.forget()
        guard.note_begun(has_moved=False)
        assert taken.call_count == 2
    swap(experts)
    with pytest.raises(RelibraError, match="written behind"):
        guard.check_trained()
    guard.note_begun(has_moved=True)
    guard.check_trained()


def test_S9_restored_weights_are_unknown_once_a_step_begins() -> None:
    guard, experts = guarded()
    swap(experts)
    guard.note_visiting()
    swap(experts)
    guard.note_begun(has_moved=False)
    swap(experts)
    with pytest.raises(RelibraError, match="written behind"):
        guard.check_known()


def test_before_the_first_plan_and_while_an_optimizer_steps_any_write_is_right() -> None:
    guard, experts = guarded(is_armed=False)
    swap(experts)
    guard.check_trained()
    guard, experts = guarded()
    guard.forget()
    swap(experts)
    guard.check_trained()
    guard.check_known()


def test_a_late_gather_of_what_other_ranks_updated_is_no_alarm() -> None:
    owned = OptimizerState([], lambda each: Shard(start=0, stop=2, main=each, is_copy=False))
    guard, experts = guarded(state=owned)
    experts.parameters[0][0].data.view(-1)[2:] += 1
    guard.check_trained()
    experts.parameters[0][0].data.view(-1)[1] += 1
    with pytest.raises(RelibraError, match="written behind"):
        guard.check_trained()


@given(
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float64]),
    offset=st.integers(0, 9),
    size=st.integers(1, 20),
    start=st.integers(0, 19),
    bit=st.integers(0),
)
def test_S9_equal_weights_have_one_checksum_wherever_they_are_and_one_bit_changes_it(
    dtype: torch.dtype, offset: int, size: int, start: int, bit: int
) -> None:
    start = min(start, size)
    there = nn.Parameter(torch.arange(1, size + 1).to(dtype))
    here = nn.Parameter(torch.zeros(offset + size, dtype=dtype)[offset:].copy_(there.detach()))
    assert here.storage_offset() == offset
    checksum = _sum_of_words(there, start, size)
    assert torch.equal(_sum_of_words(here, start, size), checksum)
    written = there.detach()[start:].clone().view(torch.uint8)
    if len(written):
        written[bit // 8 % len(written)] ^= 1 << bit % 8
        there.data[start:] = written.view(dtype)
        assert not torch.equal(_sum_of_words(there, start, size), checksum)


@pytest.mark.parametrize("offload", ["resized", "replaced"])
def test_S9_weights_without_memory_are_refused_by_name(offload: str) -> None:
    guard, experts = guarded()
    parameter = experts.parameters[1][0]
    if offload == "resized":
        parameter.untyped_storage().resize_(0)
    else:
        parameter.data = torch.empty(0, dtype=torch.bfloat16)
    with pytest.raises(RelibraError, match="MoE layer 0 have no memory: bring them back"):
        guard.check_memory()


def test_S9_weights_on_another_device_are_refused_by_name() -> None:
    guard, _ = guarded(is_armed=False, device="cuda:1")
    with pytest.raises(RelibraError, match="MoE layer 0 are on cpu and not on cuda:1: bring them back"):
        guard.check_memory()


def test_S9_set_aside_the_guard_compares_nothing_and_then_knows_the_same_weights() -> None:
    guard, experts = guarded()
    with guard.set_aside():
        swap(experts)
        guard.check_known()
        guard.check_layer(0)
        swap(experts)
    guard.check_trained()
    swap(experts)
    with pytest.raises(RelibraError, match="written behind"):
        guard.check_trained()
