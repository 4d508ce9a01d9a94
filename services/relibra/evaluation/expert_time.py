"""The time in which a rank computes its experts, where experts of unequal sizes leave parts of the GPU idle.

A grouped matrix multiplication is cut into tiles, and the tiles of all experts go to the multiprocessors in waves. An
expert fills its last tile only in part, and a rank its last wave. Forced balance gives all experts the same number of
tokens, usually a multiple of a tile, so it loses nothing at the first cut: real routing does. UltraEP calls unequal
experts the main reason for its distance to forced balance. No GPU has measured this term for relibra.

L layers, M rows, R EP ranks, Q experts of ranks.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.model_shape import ModelShape
from relibra.evaluation.work import Work
from relibra.planning.cost import CostModel
from relibra.planning.machines.constants import Constants

_TILE_COLUMNS = 128
"""DeepGEMM and CUTLASS choose 64 to 256; 128 beside 128 rows is usual on Hopper."""


def slowest_rank_us_ML(
    work: Work, model: ModelShape, constants: Constants, num_sms: int, measured: CostModel | None
) -> NDArray[np.float64]:
    """Return the forward time of the routed experts of the slowest rank in every cell.

    Measured times are those of one expert at given numbers of tokens. They contain its tiles, so no tiles are counted.
    """
    size = int(np.prod(work.shape))
    us_MLR: NDArray[np.float64]
    if measured is not None:
        us_MLR = np.bincount(work.place_Q, curve_us(measured, work.tokens_Q), size).astype(np.float64)
    else:
        read_us = model.expert_weight_size_bytes / constants.hbm_bytes_per_us
        tiles_Q = np.ceil(work.tokens_Q / constants.tile_rows)
        tiles_MLR: NDArray[np.float64] = np.bincount(work.place_Q, weights=tiles_Q, minlength=size).astype(np.float64)
        experts_MLR = np.bincount(work.place_Q, minlength=size).astype(np.float64)
        us_MLR = experts_MLR * read_us + tiles_us(tiles_MLR, model, constants, num_sms)
    slowest_ML: NDArray[np.float64] = us_MLR.reshape(work.shape).max(axis=-1)
    return slowest_ML


def tiles_us(
    tiles_X: NDArray[np.float64], model: ModelShape, constants: Constants, num_sms: int
) -> NDArray[np.float64]:
    """Return the time of a rank's two grouped multiplications, given its tiles along the tokens."""
    total_X = np.zeros_like(tiles_X)
    for width, depth in ((2 * model.expert_ffn_size, model.hidden_size), (model.hidden_size, model.expert_ffn_size)):
        columns = -(-width // _TILE_COLUMNS)
        # A multiplication narrower than its tiles is computed by smaller ones: its padding is left out.
        tile_flop = 2 * constants.tile_rows * (width / columns) * depth
        total_X = total_X + np.ceil(tiles_X * columns / num_sms) * (num_sms * tile_flop / constants.flop_per_us)
    return total_X


def curve_us(cost: CostModel, tokens_Q: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return `CostModel.compute_us` for many numbers of tokens at once."""
    x, y = np.array(cost.expert_tokens), np.array(cost.expert_us)
    inside_Q = np.interp(tokens_Q, x, y)
    beyond_Q = y[-1] + (tokens_Q - x[-1]) * cost.us_per_token
    us_Q: NDArray[np.float64] = np.where(tokens_Q > x[-1], beyond_Q, inside_Q)
    return np.where(tokens_Q > 0, np.maximum(us_Q, 0.0), 0.0)
