from types import SimpleNamespace
from typing import Any

import pytest

from harness.framework_batches import LAYERS, check_rows, sequence_rows, slime_rollout_data
from relibra.errors import InvalidInput
from relibra.plugins.slime.batch import rank_batch
from relibra.plugins.slime.framework import MILES

ROWS = sequence_rows(0)
TRAINING_STEPS = [(0, [[ROWS[0], ROWS[2]], [ROWS[1]]]), (1, [[ROWS[3]]])]
"""The rows of the micro-batches of each training step."""


@pytest.mark.parametrize(("training_step", "micro_batches"), TRAINING_STEPS)
def test_a_training_step_of_slime_has_the_rows_of_its_own_samples(training_step: int, micro_batches: Any) -> None:
    check_rows(rank_batch(slime_rollout_data(0), LAYERS, training_step), micro_batches)
    with pytest.raises(InvalidInput, match="training_step: expected 0 to 1, got 2"):
        rank_batch(slime_rollout_data(0), LAYERS, training_step=2)


def test_a_sample_whose_rows_do_not_begin_at_its_first_token_has_none_for_the_tokens_before() -> None:
    data = slime_rollout_data(0)
    data["rollout_routed_experts"][2] = data["rollout_routed_experts"][2][3:]
    check_rows(rank_batch(data, LAYERS), [[ROWS[0], ROWS[2][3:]], [ROWS[1]]])


def dealt(data_rank: int) -> tuple[dict[str, Any], list[int]]:
    """Return `rollout_data` without slime's deal, and the micro-batches of each training step."""
    data = slime_rollout_data(data_rank)
    return {key: data[key] for key in ("tokens", "rollout_routed_experts")}, data["num_microbatches"]


@pytest.mark.parametrize(("training_step", "micro_batches"), TRAINING_STEPS)
def test_a_training_step_of_miles_has_the_rows_of_its_own_samples(training_step: int, micro_batches: Any) -> None:
    iterator = SimpleNamespace(micro_batch_indices=[[0, 2], [1], [3]], micro_batch_size=None)
    data, num_micro_batches = dealt(0)
    check_rows(MILES.batches(LAYERS, data, [iterator], num_micro_batches)(training_step), micro_batches)


def test_micro_batches_of_a_fixed_size_are_runs_of_samples() -> None:
    iterator = SimpleNamespace(micro_batch_indices=None, micro_batch_size=2)
    data, _ = dealt(0)
    check_rows(MILES.batches(LAYERS, data, [iterator], [1, 1])(1), [ROWS[2:]])
    check_rows(MILES.batches(LAYERS, data, [iterator], [2])(0), [ROWS[:2], ROWS[2:]])
