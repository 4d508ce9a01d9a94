"""The sum of replica gradients at their home, on four ranks in processes of their own."""

import pytest

pytestmark = pytest.mark.distributed


def test_S5_gradients_are_added_in_fp32_in_ascending_order_of_rank(node_run):
    """In fp32, 0.25 + 1e8 + 1 - 1e8 is 0 in this order, and another number in every other order."""
    with_main_grad, without = [0.0, None], [None, 0.0]
    home, other_home, *_ = node_run("gradients")
    assert home["main_grad_and_rest"] == [with_main_grad, without] * 2
    assert other_home["main_grad_and_rest"] == [[5.25, None], [None, 5.0]] * 2


def test_ranks_without_the_expert_get_nothing(node_run):
    for result in node_run("gradients")[2:]:
        assert result["main_grad_and_rest"] == [[0.25, None], [None, None]] * 2
