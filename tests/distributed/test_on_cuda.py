"""Which scenarios run on a CUDA device, and how ranks join there. On the CPU, this is decided and not tried."""

import pytest

from harness.distributed import on_cuda
from harness.distributed.ways_to_join import WAYS_ON_CUDA, Way


def test_on_the_cpu_everything_runs():
    assert on_cuda.refusal(Way.CPU, "any layout", "any scenario") is None


@pytest.mark.parametrize(
    ("way", "layout", "scenario", "why"),
    [
        (Way.NCCL_HOST_IDS, "two_nodes", "sgd_symmetric", None),
        (Way.NCCL_HOST_IDS, "gpt_ep4", "full-plain-fp32", None),
        (Way.NCCL_HOST_IDS, "two_nodes", "fp8", "fp8 of two_nodes runs on the CPU only"),
        (Way.NCCL_HOST_IDS, "slime_ep4", "any scenario", "runs on the CPU only"),
        (Way.GLOO, "two_nodes", "sgd", None),
        (Way.GLOO, "two_groups", "sgd", "two_groups needs NCCL"),
    ],
)
def test_a_scenario_runs_on_a_device_or_says_why_not(way, layout, scenario, why):
    refusal = on_cuda.refusal(way, layout, scenario)
    assert refusal is None if why is None else why in refusal


def test_every_transport_and_every_kind_of_expert_runs_on_a_device():
    assert {"sgd", "sgd_symmetric", "both_phases_symmetric_host_copy"} <= set(on_cuda.SCENARIOS["two_nodes"])
    assert on_cuda.chosen(Way.NCCL_HOST_IDS, "two_nodes", ["sgd", "fp8", "sgd_symmetric"]) == ["sgd", "sgd_symmetric"]


def test_a_name_that_no_layout_has_is_refused():
    layouts = dict(on_cuda.SCENARIOS)
    on_cuda.check(layouts)
    with pytest.raises(ValueError, match=r"got two_nodes/sgd$"):
        on_cuda.check(layouts | {"two_nodes": [each for each in layouts["two_nodes"] if each != "sgd"]})
    with pytest.raises(ValueError, match=r"got hot_path$"):
        on_cuda.check({layout: scenarios for layout, scenarios in layouts.items() if layout != "hot_path"})


def test_every_rank_on_a_device_claims_a_host_of_its_own_or_says_that_it_shares():
    hosts = {Way.NCCL_HOST_IDS.environment(rank)["NCCL_HOSTID"] for rank in range(4)}
    assert len(hosts) == 4
    assert Way.NCCL_MULTI_RANK.environment(0)["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert Way.CPU.environment(0) == {}
    assert [way.backend for way in WAYS_ON_CUDA] == ["nccl", "nccl", "gloo"]
    assert {way.device for way in WAYS_ON_CUDA} == {"cuda"}
