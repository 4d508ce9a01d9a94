"""The host copy of weights, pulled by four ranks in processes of their own, and by two."""

import pytest

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("ranks", ["", "pair/"])
def test_S5_every_rank_pulls_what_was_refreshed_last(node_run, ranks):
    for result in node_run(f"{ranks}host"):
        assert result["wrong"] == 0


def test_misuse_is_refused_by_name(node_run):
    for result in node_run("host"):
        assert result["empty"].startswith("RelibraError: the host copy of the weights is empty")
        assert result["size"].startswith("InvalidInput: pull.into: expected tensors of [((2,), torch.bfloat16)], got")
        assert result["reuse"].startswith("InvalidInput: parcel.tensor: expected memory that no transfer under way")
        assert result["early"].startswith("RelibraError: 1 pulls are under way")


def test_a_dead_rank_is_named_and_its_weights_are_still_there(node_run):
    for result in node_run("lost")[:3]:
        assert result["pulled"] == [3.0] * 4
        assert result["dead/host"].startswith("RelibraError: the host copy of weights: not all ranks took part in time")
