"""The comparison of a rank's routing with its plan, on counts."""

import numpy as np
import pytest
from numpy.typing import NDArray

from relibra.planning.routing_check import RoutingCause, check_routed
from relibra.planning.source_load import folded

M, L, E, T, K = 4, 3, 64, 512, 4
ALL = np.ones((M, L), dtype=np.bool_)
Routes = NDArray[np.int64]


def routes(seed: int = 0) -> Routes:
    """Return experts `[M, L, T, K]`, skewed towards other experts in every cell."""
    rng = np.random.default_rng(seed)
    weight_MLE = rng.random((M, L, 1, E)) ** 4 + 0.01
    return np.argsort(-weight_MLE * rng.random((M, L, T, E)), axis=-1)[..., :K]


def counts(routed: Routes) -> NDArray[np.int64]:
    return folded(np.stack([[np.bincount(cell.ravel(), minlength=E) for cell in layers] for layers in routed]))


PLANNED = routes()


def test_S9_right_routing_says_nothing() -> None:
    check = check_routed(counts(PLANNED), counts(PLANNED), ALL)
    assert (check.num_cells, check.otherwise) == (M * L, {})


def test_S9_a_last_token_that_the_router_chooses_says_nothing() -> None:
    realised = PLANNED.copy()
    realised[:, :, -1] = (realised[:, :, -1] + 1) % E
    assert check_routed(counts(PLANNED), counts(realised), ALL).otherwise == {}


def test_S9_routers_that_decide_are_found_in_every_cell() -> None:
    check = check_routed(counts(PLANNED), counts(routes(1)), ALL)
    assert check.otherwise == {RoutingCause.NO_REPLAY: M * L}


def test_S9_another_order_of_micro_batches_is_found_in_whole_micro_batches() -> None:
    check = check_routed(counts(PLANNED), counts(PLANNED[[1, 0, 2, 3]]), ALL)
    assert check.otherwise == {RoutingCause.MICRO_BATCHES: 2 * L}


def test_S9_merged_micro_batches_are_found_by_their_number_of_tokens() -> None:
    merged = counts(PLANNED)[:2] + counts(PLANNED)[2:]
    check = check_routed(counts(PLANNED), merged, ALL[:2])
    assert (check.num_cells, check.otherwise) == (2 * L, {RoutingCause.MICRO_BATCHES: 2 * L})


def test_S9_micro_batches_beyond_the_plan_are_found() -> None:
    planned = counts(PLANNED)
    check = check_routed(planned[:3], planned, ALL)
    assert check.otherwise == {RoutingCause.MICRO_BATCHES: L}


@pytest.mark.parametrize("padding", [20, -20])
def test_S9_wrong_fillers_are_found_in_every_cell(padding: int) -> None:
    planned, realised = PLANNED, PLANNED
    filler = np.broadcast_to(np.arange(K), (M, L, abs(padding), K))
    if padding > 0:
        realised = np.concatenate([PLANNED, filler], axis=2)
    else:
        planned = np.concatenate([PLANNED, filler], axis=2)
    assert check_routed(counts(planned), counts(realised), ALL).otherwise == {RoutingCause.FILLERS: M * L}


def test_S9_sequences_that_are_not_replayed_are_tokens_on_top_of_the_planned_ones() -> None:
    native = routes(1)[:, :, : T // 2]
    realised = np.concatenate([PLANNED, native], axis=2)
    assert check_routed(counts(PLANNED), counts(realised), ALL).otherwise == {RoutingCause.FILLERS: M * L}
    without_plan = counts(PLANNED)
    without_plan[0] = 0
    assert check_routed(without_plan, counts(PLANNED), ALL).otherwise == {RoutingCause.FILLERS: L}


def test_cells_that_did_not_run_are_not_compared() -> None:
    ran_ML = ALL.copy()
    ran_ML[1:] = False
    check = check_routed(counts(PLANNED), counts(PLANNED) * ran_ML[..., None], ran_ML)
    assert (check.num_cells, check.otherwise) == (L, {})
