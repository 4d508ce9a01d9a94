"""The operations: gradients, refused arguments, and callers that torch compiles."""

from collections.abc import Callable, Sequence
from unittest import mock

import pytest
import torch
from torch import Tensor

from relibra.errors import InvalidInput, RelibraError
from relibra.kernels import (
    EMPTY,
    REST,
    checks,
    expert_pack,
    expert_unpack,
    grad_accumulate,
    quota_remap,
    reference,
)


def _routing(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    routing_map_TE = torch.rand(9, 4) < 0.5
    slot_expert_P = torch.tensor([2, 0, 1, 3, 1, EMPTY], dtype=torch.int32)
    share_P = torch.tensor([REST, REST, REST, REST, 3, 0], dtype=torch.int32)
    return (torch.rand(9, 4) * routing_map_TE).to(dtype), routing_map_TE, slot_expert_P, share_P


def test_S5_gradients_pass_through_the_remap() -> None:
    probs_TE, routing_map_TE, slot_expert_P, share_P = _routing(torch.float64)
    probs_TE.requires_grad_()

    def remap(probs_TE: Tensor) -> Tensor:
        return quota_remap(probs_TE, routing_map_TE, slot_expert_P, share_P)[0]

    assert torch.autograd.gradcheck(remap, probs_TE)
    upstream_TP = torch.randn(9, 6, dtype=torch.float64)
    (got_TE,) = torch.autograd.grad(remap(probs_TE), probs_TE, upstream_TP)
    plain_TP, _ = reference.quota_remap(probs_TE, routing_map_TE, slot_expert_P, share_P)
    (want_TE,) = torch.autograd.grad(plain_TP, probs_TE, upstream_TP)
    assert torch.equal(got_TE, want_TE)


def test_slots_of_a_checked_plan_are_not_read_again() -> None:
    probs_TE, routing_map_TE, slot_expert_P, share_P = _routing()
    with mock.patch.object(checks, "slots", side_effect=AssertionError("read")):
        got = quota_remap(probs_TE, routing_map_TE, slot_expert_P, share_P, has_valid_slots=True)
    assert all(map(torch.equal, got, quota_remap(probs_TE, routing_map_TE, slot_expert_P, share_P)))


def test_a_compiled_caller_gets_the_same_results() -> None:
    @torch.compile(backend="eager")
    def remap_twofold(probs_TE: Tensor, map_TE: Tensor, expert_P: Tensor, share_P: Tensor) -> tuple[Tensor, Tensor]:
        probs_TP, map_TP = quota_remap(probs_TE * 2, map_TE, expert_P, share_P)
        return probs_TP * 2, map_TP

    probs_TE, *slots = _routing()
    compiled_TE, plain_TE = (probs_TE.clone().requires_grad_() for _ in range(2))
    probs_TP, map_TP = remap_twofold(compiled_TE, *slots)
    want_TP, want_map_TP = reference.quota_remap(plain_TE * 4, *slots)
    assert torch.equal(probs_TP, want_TP)
    assert torch.equal(map_TP, want_map_TP)
    probs_TP.sum().backward()
    want_TP.sum().backward()
    assert torch.equal(compiled_TE.grad, plain_TE.grad)


def test_writing_to_a_leaf_parameter_is_seen_by_autograd() -> None:
    weight = torch.nn.Parameter(torch.zeros(4))
    product = (weight * weight).sum()
    expert_unpack(expert_pack([torch.ones(4)], torch.device("cpu")), [weight])
    assert torch.equal(weight, torch.ones(4))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_S9_second_derivatives_are_refused_and_not_wrong() -> None:
    probs_TE, routing_map_TE, slot_expert_P, share_P = _routing()
    probs_TP, _ = quota_remap(probs_TE.requires_grad_(), routing_map_TE, slot_expert_P, share_P)
    with pytest.raises(RelibraError, match="without create_graph=True"):
        probs_TP.sum().backward(create_graph=True)


def test_nothing_to_move_is_fine() -> None:
    assert expert_pack([], torch.device("cpu")).shape == (0,)
    expert_unpack(torch.zeros(0, dtype=torch.uint8), [])
    grad_accumulate([], [])
    grad_accumulate([torch.zeros(2)], [[]])


_PROBS, _MAP, _EXPERTS, _SHARES = _routing()
_REFUSED: Sequence[tuple[str, Callable[[], object]]] = [
    (r"probs_TE: expected \[T, E\], floating", lambda: quota_remap(_PROBS.int(), _MAP, _EXPERTS, _SHARES)),
    (r"probs_TE: .* got torch.float32 \[9\]", lambda: quota_remap(_PROBS[:, 0], _MAP, _EXPERTS, _SHARES)),
    (r"routing_map_TE: expected bool \[9, 4\]", lambda: quota_remap(_PROBS, _MAP[:3], _EXPERTS, _SHARES)),
    (r"routing_map_TE: .* got torch.int8", lambda: quota_remap(_PROBS, _MAP.to(torch.int8), _EXPERTS, _SHARES)),
    (r"share_P: expected int32 or int64 \[6\]", lambda: quota_remap(_PROBS, _MAP, _EXPERTS, _SHARES[:5])),
    (r"slot_expert_P: .* got torch.float32", lambda: quota_remap(_PROBS, _MAP, _EXPERTS.float(), _SHARES)),
    (r"slot_expert_P: expected experts 0 to 3, .* got 5", lambda: quota_remap(_PROBS, _MAP, _EXPERTS + 2, _SHARES)),
    (r"slot_expert_P: .* or -1 \(empty\), got -2", lambda: quota_remap(_PROBS, _MAP, _EXPERTS - 1, _SHARES)),
    (r"into\[0\]: expected torch.float32", lambda: grad_accumulate([torch.zeros(2).half()], [[torch.zeros(2).half()]])),
    (
        r"gradients\[0\]\[1\]: expected torch",
        lambda: grad_accumulate([torch.zeros(2)], [[torch.ones(2), torch.ones(3)]]),
    ),
    (
        r"gradients\[0\]\[0\]: .* got torch.float64",
        lambda: grad_accumulate([torch.zeros(2)], [[torch.zeros(2).double()]]),
    ),
    (r"gradients: expected 1 lists", lambda: grad_accumulate([torch.zeros(2)], [])),
]


@pytest.mark.parametrize(("message", "call"), _REFUSED, ids=range(len(_REFUSED)))
def test_S7_arguments_that_do_not_fit_are_refused_by_name(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()


def test_S7_devices_are_not_mixed() -> None:
    with pytest.raises(InvalidInput, match=r"gradients\[0\]: expected on cpu, got meta"):
        checks.grad_accumulate([torch.zeros(2)], [[torch.zeros(2, device="meta")]])
