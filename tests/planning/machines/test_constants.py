from dataclasses import fields, replace

import pytest

from relibra.planning import CostModel
from relibra.planning.machines.constants import Constants, middles, ranges_of
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import HARDWARE


@pytest.mark.parametrize("dispatcher", list(Dispatcher))
@pytest.mark.parametrize("name", HARDWARE)
def test_every_constant_has_a_range_around_its_middle_and_a_source(name, dispatcher):
    ranges = ranges_of(HARDWARE[name], dispatcher)
    assert set(ranges) == {each.name for each in fields(Constants)}
    for each in ranges.values():
        assert each.low <= each.mid <= each.high
        assert each.source
    constants, hardware = middles(ranges), HARDWARE[name]
    assert constants.flop_per_us < hardware.flop_per_us
    assert max(constants.weight_bytes_per_us, constants.dispatch_inside_bytes_per_us) < hardware.nvlink_bytes_per_us
    assert constants.dispatch_across_bytes_per_us < hardware.network_bytes_per_us
    assert constants.gradient_bytes_per_us <= constants.weight_bytes_per_us


def test_an_all_to_all_is_slower_between_nodes_than_deepep():
    of = {each: ranges_of(HARDWARE["h100"], each)["dispatch_across_bytes_per_us"] for each in Dispatcher}
    assert of[Dispatcher.ALLTOALL].mid < of[Dispatcher.HYBRIDEP].mid < of[Dispatcher.DEEPEP].mid < 45e3


def test_gradients_take_multiprocessors_of_their_own_generation():
    share = {name: ranges_of(HARDWARE[name], Dispatcher.DEEPEP)["gradient_sm_share"].mid for name in ("h100", "b200")}
    assert share == {"h100": 42 / 132, "b200": 42 / 148}


def test_measured_links_have_no_range_and_links_that_nobody_measured_keep_theirs():
    measured = replace(HARDWARE["h100"], measured=CostModel(inter_node_bytes_per_us=21e3))
    ranges, without = (ranges_of(each, Dispatcher.ALLTOALL) for each in (measured, HARDWARE["h100"]))
    across = ranges["dispatch_across_bytes_per_us"]
    assert (across.low, across.mid, across.high) == (21e3, 21e3, 21e3)
    assert ranges["dispatch_inside_bytes_per_us"] == without["dispatch_inside_bytes_per_us"]
