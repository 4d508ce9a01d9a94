"""One suite for all transports: four ranks in processes of their own."""

import pytest

pytestmark = pytest.mark.distributed


@pytest.fixture(params=["process_group"])
def transport(request):
    return request.param


def test_everything_arrives_whatever_the_order_of_waiting(node_run, transport):
    for result in node_run(f"{transport}/arrival"):
        assert result["wrong"] == []
        assert result["counted"]
        assert result["num"] > 5


def test_start_does_not_wait_for_peers_and_handles_own_what_they_need(node_run, transport):
    for result in node_run(f"{transport}/ownership"):
        assert result == {"is_held": True, "is_let_go": True, "is_right": True}


def test_a_tensor_with_holes_is_refused(node_run, transport):
    for result in node_run(f"{transport}/refusal"):
        assert result["message"].startswith("a parcel must be contiguous, got strides")


def test_a_dead_peer_is_noticed(node_run, transport):
    for result in node_run(f"{transport}/dead_peer")[:3]:
        assert result["message"].startswith("ranks [3] of the group did not send or take experts in time")
        assert result["message"].endswith("restart from the last checkpoint")
