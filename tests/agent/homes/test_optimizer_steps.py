"""Every step of an optimizer is seen once, whoever calls it, and none after the hooks are gone."""

import pytest
import torch

from relibra.agent.homes.optimizer_steps import around_steps


class TwoSteps(torch.optim.SGD):
    """An optimizer whose `step` calls another public step, as megatron's do."""

    def step(self, closure=None):
        return self.step_with_ready_grads()

    def step_with_ready_grads(self):
        return super().step()


@pytest.fixture
def weight():
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return parameter


@pytest.mark.parametrize("name", ["step", "step_with_ready_grads"])
def test_a_step_is_seen_before_and_after_the_weights_change(weight, name):
    seen = []
    optimizer = TwoSteps([weight], lr=1.0)
    undo = around_steps(optimizer, lambda: seen.append(weight.sum().item()), lambda: seen.append(weight.sum().item()))
    getattr(optimizer, name)()
    assert seen == [2.0, 0.0]
    undo()
    getattr(optimizer, name)()
    assert len(seen) == 2
    assert "step" not in vars(optimizer)


def test_S9_a_refusal_keeps_the_optimizer_from_stepping(weight):
    def refuse():
        raise RuntimeError("refused")

    optimizer = TwoSteps([weight], lr=1.0)
    around_steps(optimizer, refuse, lambda: None)
    with pytest.raises(RuntimeError, match="refused"):
        optimizer.step()
    assert weight.tolist() == [1.0, 1.0]


def test_a_scheduler_that_wraps_the_step_later_keeps_its_wrapper(weight):
    seen = []
    optimizer = TwoSteps([weight], lr=1.0)
    undo = around_steps(optimizer, lambda: seen.append("before"), lambda: seen.append("after"))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    optimizer.step()
    assert seen == ["before", "after"]
    undo()
    optimizer.step()
    scheduler.step()
    assert seen == ["before", "after"]
