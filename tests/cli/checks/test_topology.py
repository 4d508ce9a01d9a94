from itertools import combinations

from relibra.cli.checks.finding import CheckResult
from relibra.cli.checks.topology import judge, read_links

PRINTED = """
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tSYS\tSYS\tPXB\t0-31\t0\tN/A
GPU1\tNV12\t X \tSYS\tSYS\tPXB\t0-31\t0\tN/A
GPU2\tSYS\tSYS\t X \tNV12\tSYS\t32-63\t1\tN/A
GPU3\tSYS\tSYS\tNV12\t X \tSYS\t32-63\t1\tN/A
NIC0\tPXB\tPXB\tSYS\tSYS\t X

Legend:

  X    = Self
"""


def test_groups_of_gpus_that_nvlink_joins_become_nodes():
    links = read_links(PRINTED)
    assert links.keys() == set(combinations(range(4), 2))
    (found,) = judge(links)
    assert found.verdict is CheckResult.WARNING
    assert "NVLink joins (0, 1) (2, 3) only; 4 pairs over PCIe and the link between sockets" in found.reason
    assert "gpus_per_node=2" in found.fix


def test_nvlink_between_all_gpus_passes_and_between_none_warns():
    (full,) = judge(dict.fromkeys(combinations(range(8), 2), "NV18"))
    assert full.verdict is CheckResult.OK
    assert full.reason == "NVLink joins all 8 GPUs, 18 links a pair"
    (none,) = judge(dict.fromkeys(combinations(range(4), 2), "PHB"))
    assert none.verdict is CheckResult.WARNING
    assert "no NVLink between 4 GPUs" in none.reason
    assert judge({})[0].verdict is CheckResult.SKIPPED
