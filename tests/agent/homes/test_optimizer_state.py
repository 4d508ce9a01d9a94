import torch

from relibra.agent.homes.optimizer_state import OptimizerState


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
