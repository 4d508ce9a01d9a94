"""Routing replay by micro-batch, on one router. Whole schedules run in tests/distributed."""

from types import SimpleNamespace

import pytest
import torch

from relibra.agent.cells.replay import LayerRouting, MicroBatchReplay, check_routing, experts_to_replay
from relibra.errors import InvalidInput
from relibra.planning import Model

MODEL = Model(num_layers=2, num_experts=5, top_k=2)
CPU = torch.device("cpu")


def native(scores: torch.Tensor, topk: int, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.topk(scores, topk, dim=1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int16, torch.int32, torch.int64])
def test_any_integers_are_taken(dtype: torch.dtype) -> None:
    routed_LTK = torch.tensor([[[0, 4]], [[3, 1]]], dtype=dtype)
    checked = check_routing(routed_LTK, MODEL, CPU).routed_LTK
    assert checked.tolist() == routed_LTK.tolist()
    assert checked.dtype is torch.int16


def test_more_experts_than_16_bits_hold_keep_their_numbers() -> None:
    model = Model(num_layers=1, num_experts=40_000, top_k=2)
    assert check_routing(torch.tensor([[[39_999, 0]]]), model, CPU).routed_LTK.tolist() == [[[39_999, 0]]]


@pytest.mark.parametrize(
    ("routing", "field"),
    [
        pytest.param([[[0, 1]]], "routing: expected integers of shape", id="all layers but one"),
        pytest.param([[[0, 1, 2]]] * 2, "routing: expected integers of shape", id="another top-k"),
        pytest.param([[[0.0, 1.0]]] * 2, "routing: expected integers", id="floats"),
        pytest.param([[[0, 1]], [[0, 5]]], r"routing\[1, 0\]", id="an expert that does not exist"),
        pytest.param([[[0, 1]], [[2, 2]]], r"routing\[1, 0\].*distinct", id="an expert twice in a row"),
        pytest.param([[[0, -1]], [[2, 3]]], r"routing\[0, 0\]", id="half a native row"),
    ],
)
def test_what_the_router_would_lose_silently_is_refused(routing: list[object], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        check_routing(torch.tensor(routing), MODEL, CPU)


@pytest.mark.parametrize(
    ("expert", "dtypes"),
    [
        pytest.param(65_535, [torch.uint16, torch.int32, torch.int64], id="-1 of 16 bits"),
        pytest.param(65_536 + 3, [torch.int32, torch.uint32, torch.int64], id="another layer in the upper half"),
        pytest.param(2**31 - 1, [torch.int32, torch.uint32, torch.int64], id="the largest of 32 bits"),
        pytest.param(2**32 - 1, [torch.uint32, torch.int64], id="-1 of 32 bits"),
        pytest.param(-(2**31), [torch.int32, torch.int64], id="the smallest of 32 bits"),
        pytest.param(2**63 - 1, [torch.int64, torch.uint64], id="the largest of 64 bits"),
        pytest.param(255, [torch.uint8], id="-1 of 8 bits"),
    ],
)
def test_numbers_beyond_those_of_experts_do_not_become_experts(expert: int, dtypes: list[torch.dtype]) -> None:
    model = Model(num_layers=1, num_experts=5, top_k=1)
    for dtype in dtypes:
        with pytest.raises(InvalidInput, match=rf"routing\[0, 1\].* got \[{expert}\]"):
            check_routing(torch.tensor([[[0], [expert]]], dtype=dtype), model, CPU)


def test_the_host_knows_which_layers_leave_tokens_to_the_router() -> None:
    checked = check_routing(torch.tensor([[[0, 4], [-1, -1]], [[3, 1], [0, 1]]]), MODEL, CPU)
    assert checked.has_native_L == (True, False)
    assert [checked.of(layer).has_native for layer in range(2)] == [True, False]
    assert checked.of(1).experts_TK.tolist() == [[3, 1], [0, 1]]
    assert checked.of(1).experts_TK.dtype is torch.int64


def test_routing_is_copied_because_callers_use_their_buffers_again() -> None:
    batch = torch.tensor([[[0, 4], [2, 3]], [[3, 1], [0, 1]]], dtype=torch.int16)
    checked = check_routing(batch[:, 1:], MODEL, CPU).routed_LTK
    batch.fill_(2)
    assert checked.tolist() == [[[2, 3]], [[0, 1]]]
    assert checked.untyped_storage().nbytes() == checked.nbytes


def test_scores_are_those_of_the_given_experts_and_differentiable() -> None:
    scores = torch.rand(3, 5, requires_grad=True)
    given = torch.tensor([[0, 1], [-1, -1], [4, 2]])
    routing = LayerRouting(given, has_native=True)
    probs, chosen = MicroBatchReplay(None, lambda: routing).get_replay_topk(scores, 2, None, None, native)
    assert chosen.tolist() == [[0, 1], native(scores, 2)[1][1].tolist(), [4, 2]]
    assert torch.equal(probs, scores.gather(1, chosen))
    probs.sum().backward()
    assert scores.grad is not None
    assert scores.grad.sum() == 6


def test_without_routing_the_router_or_its_own_replay_decides() -> None:
    scores = torch.rand(3, 5)

    class Own:
        queue = 3

        def get_replay_topk(self, scores: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
            return scores[:, :2], torch.tensor([[0, 1]] * 3)

    _, chosen = MicroBatchReplay(None, lambda: None).get_replay_topk(scores, 2, None, None, native)
    assert torch.equal(chosen, native(scores, 2)[1])
    replay = MicroBatchReplay(Own(), lambda: None)
    assert replay.get_replay_topk(scores, 2, None, None, native)[1].tolist() == [[0, 1]] * 3
    assert replay.queue == 3


def test_rows_for_another_number_of_tokens_are_refused() -> None:
    replay = MicroBatchReplay(None, lambda: LayerRouting(torch.tensor([[0, 1]]), has_native=False))
    with pytest.raises(InvalidInput, match="rows for 3 tokens, got 1"):
        replay.get_replay_topk(torch.rand(3, 5), 2, None, None, native)


@pytest.mark.parametrize(
    ("action", "told"), [("replay_forward", [[1, 2], [3, 4]]), ("replay_backward", None), ("record", None)]
)
def test_a_replay_tells_ahead_what_it_has_for_the_next_forward(action: str, told: list[list[int]] | None) -> None:
    replay = SimpleNamespace(
        router_replay_action=SimpleNamespace(value=action), target_topk_idx=torch.tensor([[1, 2], [3, 4]])
    )
    experts_TK = experts_to_replay(replay)
    assert (None if experts_TK is None else experts_TK.tolist()) == told


def test_rows_outside_of_the_mask_are_left_to_the_router() -> None:
    target_TK = torch.tensor([[1, 2], [3, 4]])
    replay = SimpleNamespace(
        router_replay_action=SimpleNamespace(value="replay_forward"),
        target_topk_idx=target_TK,
        target_replay_mask=torch.tensor([1, 0]),
    )
    experts_TK = experts_to_replay(replay)
    assert experts_TK is not None
    assert experts_TK.tolist() == [[1, 2], [-1, -1]]
    assert target_TK.tolist() == [[1, 2], [3, 4]], "the replay itself keeps what it has"


def test_a_router_without_a_replay_tells_nothing() -> None:
    assert experts_to_replay(None) is None
    assert experts_to_replay(SimpleNamespace(router_replay_action=None)) is None
