"""The sum of replica gradients at their home, on four ranks in processes of their own."""

import pytest

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("scenario", ["gradients", "gradients_symmetric"])
def test_S5_gradients_are_added_in_fp32_in_ascending_order_of_rank(node_run, scenario):
    """In fp32, 0.25 + 1e8 + 1 - 1e8 is 0 in this order, and another number in every other order.

    A bf16 `main_grad` of 0.25 gets the fp32 sum of the others, which is 0.
    """
    home, other_home, *_ = node_run(scenario)
    assert home["main_grad_and_rest"] == expected(in_fp32=[0.0], in_bf16=[0.25], without=[0.0])
    assert other_home["main_grad_and_rest"] == expected(in_fp32=[5.25], in_bf16=[5.25], without=[5.0])


def test_S7_gradients_arrive_in_as_much_memory_as_is_given(node_run):
    """The sums above are the same. A return that is waited for before it is added up takes all memory at once."""
    for result in node_run("gradients"):
        for whole, tiled in zip(result["arriving"][::4], result["arriving"][2::4], strict=True):
            assert tiled <= 128
            assert (whole > 128) == (whole > tiled)
    assert node_run("gradients")[0]["arriving"][::4] == [240, 240, 240, 480, 480, 480]


def test_ranks_without_the_expert_get_nothing(node_run):
    for result in node_run("gradients")[2:]:
        assert result["main_grad_and_rest"] == expected(in_fp32=[0.25], in_bf16=[0.25], without=None)


def expected(*, in_fp32, in_bf16, without):
    """Return `main_grad` and the gradient for autograd with every dtype of both, whatever the memory."""
    with_main_grad = [[in_fp32, None]] * 4 + [[in_bf16, None]] * 4
    return (with_main_grad + [[None, without]] * 4) * 2
