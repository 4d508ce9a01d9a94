"""One suite for all transports, on the four ranks of a node and on two pairs of ranks."""

import pytest

from harness.agent import transport_contract as contract
from harness.distributed.layout import NODE
from harness.distributed.on_ranks import on_ranks


def with_every_transport(function):
    for name, values in (("transport", contract.TRANSPORTS), ("world", (4, pytest.param(2, marks=pytest.mark.long)))):
        function = pytest.mark.parametrize(name, values)(function)
    return on_ranks(NODE)(function)


def keeps(part, transport, world):
    part(contract.TRANSPORTS[transport], contract.group_of(world))


@with_every_transport
def test_everything_arrives_whatever_the_order_of_waiting(cluster, transport, world):
    keeps(contract.arrival, transport, world)


@with_every_transport
def test_start_does_not_wait_for_peers_and_handles_own_what_they_need(cluster, transport, world):
    keeps(contract.ownership, transport, world)


@with_every_transport
def test_a_tensor_with_holes_is_refused_and_not_counted_as_sent(cluster, transport, world):
    keeps(contract.refusal, transport, world)


@with_every_transport
def test_S5_a_slot_that_is_being_filled_is_refused_to_others(cluster, transport, world):
    keeps(contract.reuse, transport, world)


@with_every_transport
def test_what_arrives_is_sent_on_where_the_transport_says_so_and_refused_elsewhere(cluster, transport, world):
    keeps(contract.relays, transport, world)


@with_every_transport
def test_S5_thousands_of_random_schedules_deliver_every_copy_and_end(cluster, transport, world):
    """Cells travel there and back, several at once, with relays if the transport has any, waited for in any order."""
    keeps(contract.schedules, transport, world)


@with_every_transport
def test_a_parcel_of_another_size_than_expected_fails_its_receiver_and_is_not_delivered(cluster, transport, world):
    keeps(contract.wrong_size, transport, world)
