"""The order of passes is that of Megatron's schedules."""

import numpy as np
import pytest

from relibra.planning.pipeline import passes_of

SHAPES = [
    (num_stages, num_chunks, num_micro_batches)
    for num_stages in (1, 2, 4)
    for num_chunks in (1, 2, 3)
    for num_micro_batches in (1, 2, 5, 8)
    if num_stages > 1 or num_chunks == 1
]


def in_order(stage: int, num_stages: int, num_chunks: int, num_micro_batches: int) -> list[tuple[int, int, bool]]:
    passes = passes_of(stage, num_stages, num_chunks, num_micro_batches)
    lists = (passes.micro_batch_T.tolist(), passes.chunk_T.tolist(), passes.is_forward_T.tolist())
    return list(zip(*lists, strict=True))


@pytest.mark.parametrize(("num_stages", "num_chunks", "num_micro_batches"), SHAPES)
def test_forwards_and_backwards_follow_the_table_of_megatron(num_stages, num_chunks, num_micro_batches):
    schedules = pytest.importorskip("megatron.core.pipeline_parallel.schedules")
    table = schedules.get_schedule_table(num_micro_batches, num_chunks, num_stages)
    for stage in range(num_stages):
        passes = in_order(stage, num_stages, num_chunks, num_micro_batches)
        assert [each[:2] for each in passes if each[2]] == table
        assert [each[:2] for each in passes if not each[2]] == [(m, num_chunks - 1 - chunk) for m, chunk in table]


@pytest.mark.parametrize(("num_stages", "num_chunks", "num_micro_batches"), SHAPES)
def test_a_stage_runs_as_many_forwards_ahead_as_megatron(num_stages, num_chunks, num_micro_batches):
    for stage in range(num_stages):
        later = num_stages - stage - 1
        ahead = later if num_chunks == 1 else 2 * later + (num_chunks - 1) * num_stages
        passes = in_order(stage, num_stages, num_chunks, num_micro_batches)
        under_way = np.cumsum([1 if is_forward else -1 for *_, is_forward in passes])
        assert under_way.min() >= 0
        assert under_way[-1] == 0
        assert under_way.max() == min(ahead + 1, num_micro_batches * num_chunks)
