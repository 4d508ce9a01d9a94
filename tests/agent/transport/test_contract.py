"""One suite for all transports, on four ranks in processes of their own and on two pairs of ranks."""

import pytest

pytestmark = pytest.mark.distributed


@pytest.fixture(params=["process_group", "symmetric"])
def transport(request):
    return request.param


@pytest.fixture(params=["", "pair/"], ids=["four_ranks", "two_ranks"])
def ranks(request):
    return request.param


def test_everything_arrives_whatever_the_order_of_waiting(node_run, ranks, transport):
    for result in node_run(f"{ranks}{transport}/arrival"):
        assert result["wrong"] == []
        assert result["counted"]
        assert result["num"] > 5


def test_start_does_not_wait_for_peers_and_handles_own_what_they_need(node_run, ranks, transport):
    for result in node_run(f"{ranks}{transport}/ownership"):
        assert result == {"is_held": True, "is_let_go": True, "is_right": True}


def test_a_tensor_with_holes_is_refused_and_not_counted_as_sent(node_run, ranks, transport):
    for result in node_run(f"{ranks}{transport}/refusal"):
        assert result["message"].startswith("ValueError: a parcel must be contiguous, got strides")
        assert result["sent_bytes"] == 0


def test_S5_a_slot_that_is_being_filled_is_refused_to_others(node_run, ranks, transport):
    for result in node_run(f"{ranks}{transport}/reuse"):
        assert len(result["messages"]) == 3
        for message in result["messages"]:
            assert message.startswith("InvalidInput: parcel.tensor: expected memory that no transfer under way fills")
        assert result["is_right"]


def test_what_arrives_is_sent_on_where_the_transport_says_so_and_refused_elsewhere(node_run, ranks, transport):
    for result in node_run(f"{ranks}{transport}/relays"):
        if transport == "symmetric":
            assert result == {"is_right": True}
        else:
            assert result["message"].startswith("InvalidInput: parcel.tensor")


def test_S5_thousands_of_random_schedules_deliver_every_copy_and_end(node_run, ranks, transport):
    """Cells travel there and back, several at once, with relays if the transport has any, waited for in any order."""
    for result in node_run(f"{ranks}{transport}/schedules"):
        assert result["wrong"] == 0
        assert result["copies"] > 500


def test_a_parcel_of_another_size_than_expected_fails_its_receiver_and_is_not_delivered(node_run, ranks, transport):
    for rank, result in enumerate(node_run(f"{ranks}{transport}/wrong_size")):
        for message, is_delivered in result["results"]:
            assert not is_delivered
            if not result["is_sender"]:
                peer = 1 if ranks else rank + 1
                assert message.startswith(f"RelibraError: ranks [{peer}] of the group did not send or take experts in")


@pytest.mark.parametrize("fault", ["hung", "dead"])
def test_a_peer_that_hangs_or_dies_is_named_in_time(node_run, ranks, transport, fault):
    """The last of four ranks, or of two, is lost. The others give up on a hanging rank after the timeout."""
    survivors = node_run(f"{ranks}lost")
    assert len(survivors) == (1 if ranks else 3)
    for result in survivors:
        message = result[f"{fault}/{transport}"]
        peer = result["peer"]
        assert message.startswith(f"RelibraError: ranks [{peer}] of the group did not send or take experts in time")
        assert message.endswith("restart from the last checkpoint")
        assert result["in_time"]
