import torch

from benchmarks.long_sequences.record import NUM_EXPERTS, NUM_LAYERS, PIECE_LENGTH, TOP_K, Transformer


@torch.no_grad()
def test_the_routing_of_a_token_depends_on_no_later_token():
    torch.manual_seed(0)
    model, token_BT = Transformer(), torch.randint(0, 4096, (1, 3 * PIECE_LENGTH))
    changed_BT = token_BT.clone()
    changed_BT[:, 300:] = 7
    (_, before, _), (_, after, _) = model(token_BT), model(changed_BT)
    assert len(before) == NUM_LAYERS
    for before_XK, after_XK in zip(before, after, strict=True):
        assert before_XK.shape == (3 * PIECE_LENGTH, TOP_K)
        assert int(before_XK.max()) < NUM_EXPERTS
        assert (before_XK[:300].sort().values == after_XK[:300].sort().values).all()
