"""The host copy of weights, pulled by four ranks in processes of their own, and by two ranks."""

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


@pytest.mark.parametrize("ranks", ["", "pair/"])
@pytest.mark.parametrize("fault", ["hung", "dead"])
def test_a_refresh_ends_without_a_rank_whose_weights_are_still_there(node_run, ranks, fault):
    for result in node_run(f"{ranks}lost"):
        message = result[f"{fault}/host"]
        assert message.startswith("RelibraError: the host copy of weights: not all ranks took part in time")
        assert result["pulled"] == [float(result["peer"])] * 4
