"""The copies of each token as a list of slots, for dispatchers that take slots and not a routing map.

T tokens of this rank, P physical slots, K top-k.
"""

import torch
from torch import Tensor

NONE = -1
"""The slot of a copy that does not exist, in DeepEP's notation."""


def token_copies(routing_map_TP: Tensor, probs_TP: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Return the slots of each token, int64 `[T, K]` in ascending order and then `NONE`, and their probabilities.

    The probabilities do not decide which slots a token has: a copy may have probability 0, and a token fewer than K
    copies. The result is differentiable in the probabilities.

    Args:
        routing_map_TP: bool, with at most K slots per token.
        probs_TP: probabilities, 0 where nothing is routed.
        top_k: K.
    """
    num_slots = routing_map_TP.shape[1]
    # Different keys for all slots of a token make the order of the result the same on every device.
    key_P = torch.arange(num_slots, 0, -1, dtype=torch.int32, device=routing_map_TP.device)
    key_TK, slot_TK = (routing_map_TP * key_P).topk(top_k, dim=-1)
    return slot_TK.masked_fill(key_TK == 0, NONE), probs_TP.gather(1, slot_TK)
