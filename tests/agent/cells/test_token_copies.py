import torch

from relibra.agent.cells.token_copies import NONE, token_copies


def test_copies_are_those_of_the_routing_map_whatever_their_probabilities() -> None:
    """The first token has a probability of 0, the second fewer copies, the third none."""
    routing_map = torch.tensor([[0, 1, 0, 0, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    probs = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.5], [0.0, 0.0, 0.25, 0.0, 0.0], [0.0] * 5], requires_grad=True)
    slots, of_copies = token_copies(routing_map, probs, 2)
    assert slots.tolist() == [[1, 4], [2, NONE], [NONE, NONE]]
    assert slots.dtype == torch.int64
    assert of_copies.tolist() == [[0.0, 0.5], [0.25, 0.0], [0.0, 0.0]]
    (of_copies * torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 0.0]])).sum().backward()
    assert probs.grad is not None
    assert probs.grad.tolist() == [[0.0, 1.0, 0.0, 0.0, 2.0], [0.0, 0.0, 3.0, 0.0, 0.0], [0.0] * 5]
