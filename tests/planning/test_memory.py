import pytest

from relibra.errors import InvalidInput
from relibra.planning.memory import ActivationMemory


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"kept_bytes": -1}, "memory.kept_bytes"),
        ({"working_bytes": 1 << 40}, "memory.working_bytes"),
        ({"num_stages": 0}, "memory.num_stages"),
        ({"num_stages": 100_000}, "memory.num_stages"),
        ({"budget_bytes": -1}, "memory.budget_bytes"),
        ({"num_stages": 2, "chunk_layers": (3, 2, 1)}, "memory.chunk_layers"),
        ({"chunk_layers": (1,) * 1000}, "memory.chunk_layers"),
        ({"chunk_layers": (4, -1)}, "memory.chunk_layers"),
    ],
)
def test_S7_values_out_of_range_are_refused_by_name(wrong, named):
    with pytest.raises(InvalidInput, match=named):
        ActivationMemory(**wrong)


def test_chunks_are_interleaved_over_stages():
    memory = ActivationMemory(num_stages=2, chunk_layers=(0, 2, 1, 3))
    assert memory.layers_of(0, 6) == [slice(0, 0), slice(2, 3)]
    assert memory.layers_of(1, 6) == [slice(0, 2), slice(3, 6)]
    with pytest.raises(InvalidInput, match=r"memory\.chunk_layers: expected 5 layers in all"):
        memory.layers_of(0, 5)


def test_S7_a_pipeline_of_many_empty_chunks_is_refused():
    with pytest.raises(InvalidInput, match=r"memory\.chunk_layers: expected at most 66, got 128"):
        ActivationMemory(chunk_layers=(2, *(0,) * 127)).layers_of(0, 2)


def test_without_chunks_stages_have_equally_many_layers():
    assert [ActivationMemory(num_stages=3).layers_of(stage, 7) for stage in range(3)] == [
        [slice(0, 3)],
        [slice(3, 5)],
        [slice(5, 7)],
    ]
