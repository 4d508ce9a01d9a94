from types import SimpleNamespace

import pytest
import torch

from relibra.agent.homes.optimizer_state import OptimizerState, Shard, WeightsAlone
from relibra.errors import Unsupported


def stepped(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.optim.Optimizer:
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def test_before_the_first_step_nothing_travels_and_nothing_is_created() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    adam = torch.optim.AdamW([parameter])
    assert OptimizerState([adam]).tensors_of(parameter) == []
    assert not adam.state


def test_moments_and_step_travel_in_order_of_their_names() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    adam = stepped(torch.optim.AdamW([parameter]), parameter)
    state = adam.state[parameter]
    tensors = OptimizerState([adam]).tensors_of(parameter)
    assert [id(each) for each in tensors] == [id(state[name]) for name in ("exp_avg", "exp_avg_sq", "step")]


def test_sgd_without_momentum_has_nothing_to_move() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    assert OptimizerState([stepped(torch.optim.SGD([parameter], lr=0.1), parameter)]).tensors_of(parameter) == []


def test_state_is_found_under_the_main_parameter_and_in_any_of_the_optimizers() -> None:
    parameter, main = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)), torch.nn.Parameter(torch.ones(3))
    parameter.main_param = main
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    sgd = stepped(torch.optim.SGD([main], lr=0.1, momentum=0.9), main)
    tensors = OptimizerState([other, sgd]).tensors_of(parameter)
    assert [id(each) for each in tensors] == [id(main), id(sgd.state[main]["momentum_buffer"])]


class Fp16Adam:
    """An optimizer with the attributes of Transformer Engine's FusedAdam that a reader looks at."""

    def __init__(self, *keys):
        self.name_to_dtype_map, self.master_weights = {"exp_avg": torch.float16}, False
        self.state = {key: {"exp_avg": torch.zeros(key.shape, dtype=torch.float16)} for key in keys}
        self._scales = {key: {"exp_avg": torch.ones(1)} for key in keys}


def test_scales_are_found_under_the_main_parameter_the_shard_or_the_parameter():
    parameter, main = torch.zeros(3), torch.zeros(3)
    adam = Fp16Adam(parameter, main)
    assert OptimizerState([adam]).scales_of(parameter) == [adam._scales[parameter]["exp_avg"]]
    parameter.main_param = main
    assert OptimizerState([adam]).scales_of(parameter)[0] is adam._scales[main]["exp_avg"]
    shard = Shard(start=0, stop=3, main=main, is_copy=False)
    assert OptimizerState([adam], lambda _: shard).scales_of(parameter)[0] is adam._scales[main]["exp_avg"]
    assert OptimizerState([adam], lambda _: None).scales_of(parameter) == []
    assert WeightsAlone().scales_of(parameter) == []


@pytest.mark.parametrize(
    ("ranges", "is_refused"),
    [
        ([(0, 4), (0, 4)], False),
        ([(0, 4), (0, 0)], False),  # whole experts of one rank, and none of the others
        ([(0, 2), (0, 2)], False),  # equal parts of all experts
        ([(0, 4), (0, 2)], True),
        ([(0, 2), (2, 4)], True),
        ([(0, 2), (0, 0)], True),
    ],
)
def test_S9_a_scale_that_would_serve_parts_of_two_experts_is_refused(ranges, is_refused):
    slots = [[torch.zeros(4)] for _ in ranges]
    shards = {
        id(slot[0]): Shard(start=start, stop=stop, main=slot[0], is_copy=False) if stop else None
        for slot, (start, stop) in zip(slots, ranges, strict=True)
    }
    scaled = OptimizerState([Fp16Adam()], lambda each: shards[id(each)])
    if is_refused:
        with pytest.raises(Unsupported, match="fp16 and fp8 in exp_avg_dtype"):
            scaled.check_scales(slots)
    else:
        scaled.check_scales(slots)
    OptimizerState([SimpleNamespace(state={})], lambda each: shards[id(each)]).check_scales(slots)
