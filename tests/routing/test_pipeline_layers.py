import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.errors import InvalidInput
from relibra.routing import ModelLayers
from relibra.routing.pipeline_layers import stage_routers


@given(num_stages=st.integers(1, 4), num_chunks=st.integers(1, 3), data=st.data())
def test_every_router_is_in_exactly_one_stage_and_in_order(num_stages, num_chunks, data):
    num_blocks = num_stages * num_chunks
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=num_blocks, max_size=num_blocks).filter(any))
    is_moe = data.draw(st.lists(st.booleans(), min_size=sum(sizes), max_size=sum(sizes)).filter(any))
    layers = ModelLayers(num_experts=4, top_k=1, is_moe=tuple(is_moe))
    stages = stage_routers(layers, num_stages, num_chunks, sizes)
    assert sorted(layer for stage in stages for layer in stage) == list(range(sum(is_moe)))
    assert all(stage == sorted(stage) for stage in stages)


def test_stages_hold_the_blocks_that_megatron_documents():
    layers = ModelLayers.uniform(num_layers=8, num_experts=4, top_k=1)
    assert stage_routers(layers, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert stage_routers(layers, 2, 4) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert stage_routers(layers, 2, 2) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    dense_first = ModelLayers(num_experts=4, top_k=1, is_moe=(False,) * 3 + (True,) * 5)
    assert stage_routers(dense_first, 2, block_sizes=[5, 3]) == [[0, 1], [2, 3, 4]]


def test_blocks_that_do_not_make_up_the_layers_are_refused():
    layers = ModelLayers.uniform(num_layers=7, num_experts=4, top_k=1)
    with pytest.raises(InvalidInput, match="num_stages: expected stages x chunks that divide the 7 layers, got 2"):
        stage_routers(layers, 2)
    for sizes in ([4, 4], [7], [8, -1]):
        with pytest.raises(InvalidInput, match="block_sizes: expected 2 that sum to 7"):
            stage_routers(layers, 2, block_sizes=sizes)


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, {}),
        ({"virtual_pipeline_model_parallel_size": 2}, {"num_chunks": 2}),
        (
            {"num_layers_in_first_pipeline_stage": 3, "num_layers_in_last_pipeline_stage": 1},
            {"block_sizes": [3, 4, 4, 1]},
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:full scope is deprecated")
def test_stages_are_those_that_megatron_builds(options, arguments):
    torch = pytest.importorskip("torch")
    transformer = pytest.importorskip("megatron.core.transformer")
    layer = pytest.importorskip("megatron.core.transformer.transformer_layer")
    block = pytest.importorskip("megatron.core.transformer.transformer_block")
    num_layers = 12 if "block_sizes" in arguments else 16
    config = transformer.TransformerConfig(
        num_layers=num_layers,
        hidden_size=8,
        num_attention_heads=2,
        pipeline_model_parallel_size=4,
        pipeline_dtype=torch.float32,
        **options,
    )
    layers = ModelLayers.uniform(num_layers=num_layers, num_experts=4, top_k=1)
    for stage, routers in enumerate(stage_routers(layers, 4, **arguments)):
        built = []
        for chunk in range(arguments.get("num_chunks", 1)):
            vp_stage = chunk if "num_chunks" in arguments else None
            first = layer.get_transformer_layer_offset(config, vp_stage=vp_stage, pp_rank=stage)
            built += range(first, first + block.get_num_layers_to_build(config, vp_stage=vp_stage, pp_rank=stage))
        assert routers == built
