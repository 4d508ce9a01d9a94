"""Where each kind of optimizer keeps state. tests/distributed moves the state of megatron's own optimizers."""

from types import SimpleNamespace

import torch

from relibra.agent.homes.state_readers import FusedAdamReader, HybridReader, StateReader, reader_of

ADAM = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))])


def fused(**state):
    """Return an optimizer with the attributes of Transformer Engine's FusedAdam, and its parameter."""
    key = torch.zeros(2)
    scales = {name: torch.ones(1) for name in ("exp_avg", "exp_avg_sq")}
    dtypes = {"exp_avg": torch.uint8, "exp_avg_sq": torch.bfloat16, "master_param": torch.float32}
    optimizer = SimpleNamespace(
        state={key: state}, _scales={key: scales}, name_to_dtype_map=dtypes, master_weights=True
    )
    return optimizer, key


def fp8(*, transpose=None):
    return SimpleNamespace(
        _data=torch.zeros(2, dtype=torch.uint8),
        _transpose=transpose,
        _scale_inv=torch.ones(1),
        _quantizer=SimpleNamespace(scale=torch.ones(1)),
    )


class Fp8(torch.Tensor):
    """A tensor with the attributes of Transformer Engine's Float8Tensor."""


def fp8_tensor(**attributes):
    tensor = torch.zeros(2).as_subclass(Fp8)
    vars(tensor).update(vars(fp8(**attributes)))
    return tensor


def same(got, want):
    return [id(each) for each in got] == [id(each) for each in want]


def test_each_kind_of_optimizer_has_its_reader():
    hybrid = SimpleNamespace(param_to_inner_param={})
    assert [type(reader_of(each)) for each in (ADAM, fused()[0], hybrid)] == [
        StateReader,
        FusedAdamReader,
        HybridReader,
    ]


def test_the_bytes_of_fp8_travel_with_all_scales_and_bf16_needs_none():
    moment, square = fp8_tensor(), torch.zeros(2, dtype=torch.bfloat16)
    optimizer, key = fused(exp_avg=moment, exp_avg_sq=square)
    reader = reader_of(optimizer)
    assert reader.has_scales
    assert same(reader.tensors(key), [moment._data, square])
    assert same(reader.scales(key), [optimizer._scales[key]["exp_avg"], moment._scale_inv, moment._quantizer.scale])


def test_a_second_copy_of_fp8_travels_too():
    moment = fp8_tensor(transpose=torch.zeros(2, dtype=torch.uint8))
    optimizer, key = fused(exp_avg=moment)
    assert same(reader_of(optimizer).tensors(key), [moment._data, moment._transpose])


def test_scales_are_foreseen_before_the_first_step_and_not_for_main_weights_that_are_not_kept():
    optimizer, key = fused()
    reader = reader_of(optimizer)
    assert (reader.tensors(key), reader.scales(key)) == ([], [])
    optimizer.name_to_dtype_map |= {"exp_avg": torch.float32, "master_param": torch.float16}
    assert reader.has_scales
    optimizer.master_weights = False
    assert not reader.has_scales


def test_offloaded_main_weights_travel_before_the_first_step_and_step_counts_never():
    key, inner, moment = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    optimizer = SimpleNamespace(param_to_inner_param={key: inner}, state={})
    reader = reader_of(optimizer)
    assert same(reader.tensors(key), [inner])
    optimizer.state[key] = {"step": torch.tensor(1.0), "master_param": inner, "exp_avg": moment}
    assert same(reader.tensors(key), [inner, moment])
    assert reader.tensors(torch.zeros(2)) == []


def test_main_weights_that_were_loaded_travel_beside_the_ones_that_will_be_used():
    key, inner, loaded = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    optimizer = SimpleNamespace(param_to_inner_param={key: inner}, state={key: {"master_param": loaded}})
    assert same(reader_of(optimizer).tensors(key), [inner, loaded])


def test_the_size_of_state_is_foreseen_before_the_first_step():
    optimizer, _ = fused()
    optimizer.store_param_remainders = True
    reader = reader_of(optimizer)
    assert reader.bytes_per_element(torch.bfloat16) == 1 + 2 + 2
    assert reader.bytes_per_element(torch.float32) == 1 + 2 + 4
    optimizer.store_param_remainders = False
    assert reader.bytes_per_element(torch.bfloat16) == 1 + 2 + 4
    optimizer.master_weights = False
    assert reader.bytes_per_element(torch.bfloat16) == 1 + 2 + 4
    assert reader.bytes_per_element(torch.float32) == 1 + 2
    assert reader_of(SimpleNamespace(param_to_inner_param={})).bytes_per_element(torch.bfloat16) == 12
