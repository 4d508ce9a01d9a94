"""A host copy is kept where it pays, by the rates that ranks measured and the memory that their machines have."""

from pathlib import Path

import pytest

from relibra.agent.link_rates import LinkRates
from relibra.planning import Cluster
from relibra.plugins.host_copy import available_bytes, choose

NODE = Cluster(num_nodes=1, gpus_per_node=8, redundant_slots=2)
NVLINK, PCIE = 360e3, 20e3


@pytest.mark.parametrize(
    ("links", "relays", "memory_share", "keeps", "why"),
    [
        (LinkRates(), False, 0.0, False, "no replicas travel between GPUs"),
        (LinkRates(inside=NVLINK, from_host=45e3), True, 0.0, False, "peers have sent all replicas before one"),
        (LinkRates(inside=NVLINK, from_host=45e3), False, 0.0, False, "in passes of fewer than"),
        (LinkRates(inside=PCIE, from_host=PCIE), False, 0.1, True, "20 GB/s from the host and 20 GB/s from a peer"),
        (LinkRates(inside=PCIE, from_host=PCIE), False, 0.2, False, "it would take 20% of the host memory"),
    ],
)
def test_a_host_copy_must_save_more_than_its_making_takes(
    links: LinkRates, relays: bool, memory_share: float, keeps: bool, why: str
) -> None:
    decision, reason = choose(
        links, NODE, relays=relays, experts_per_rank=16, exposed_share=0.34, memory_share=memory_share
    )
    assert decision is keeps
    assert why in reason


@pytest.mark.parametrize(("limit", "available"), [("max\n", 4 << 30), ("3221225472\n", 5 << 29), (None, 4 << 30)])
def test_a_container_may_have_less_memory_than_its_machine(tmp_path: Path, limit: str | None, available: int) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       8388608 kB\nMemAvailable:   4194304 kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text(f"{1 << 30}\n")
        (tmp_path / "memory.stat").write_text(f"file 7\ninactive_file {1 << 29}\n")  # which a read of files has left
    assert available_bytes(tmp_path, tmp_path / "meminfo") == available
    assert available_bytes(tmp_path, tmp_path / "of another system") == 0
