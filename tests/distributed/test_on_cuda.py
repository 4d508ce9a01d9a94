"""Which tests run on a CUDA device, and how ranks join there. On the CPU, this is decided and not tried."""

import pytest

from harness.distributed.layout import EP2_EDP2, EP4
from harness.distributed.ranks import refusal
from harness.distributed.ways_to_join import WAYS_ON_CUDA, Way


def test_on_the_cpu_everything_runs():
    assert refusal(Way.CPU, EP2_EDP2, False) is None


@pytest.mark.parametrize(
    ("way", "layout", "runs_on_a_device", "why"),
    [
        (Way.NCCL_HOST_IDS, EP4, True, None),
        (Way.NCCL_HOST_IDS, EP2_EDP2, True, None),
        (Way.NCCL_HOST_IDS, EP4, False, "runs on the CPU only"),
        (Way.GLOO, EP4, True, None),
        (Way.GLOO, EP2_EDP2, True, "ep2_edp2 needs NCCL"),
    ],
)
def test_a_test_runs_on_a_device_or_says_why_not(way, layout, runs_on_a_device, why):
    reason = refusal(way, layout, runs_on_a_device)
    assert reason is None if why is None else why in reason


def test_every_rank_on_a_device_claims_a_host_of_its_own_or_says_that_it_shares():
    hosts = {Way.NCCL_HOST_IDS.environment(rank)["NCCL_HOSTID"] for rank in range(4)}
    assert len(hosts) == 4
    assert Way.NCCL_MULTI_RANK.environment(0)["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert Way.CPU.environment(0) == {}
    assert [way.backend for way in WAYS_ON_CUDA] == ["nccl", "nccl", "gloo"]
    assert {way.device for way in WAYS_ON_CUDA} == {"cuda"}
