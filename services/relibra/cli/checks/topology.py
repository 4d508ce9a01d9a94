"""Checks how the GPUs of this machine are connected, from `nvidia-smi topo -m`."""

import re
from collections import Counter
from collections.abc import Mapping

from relibra.cli.checks.finding import Finding, ok, skipped, warning
from relibra.cli.checks.gpu import run_nvidia_smi

_WORDS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "PCIe through the CPU",
    "NODE": "PCIe through one socket",
    "SYS": "PCIe and the link between sockets",
}


def examine() -> list[Finding]:
    """Query the driver."""
    printed = run_nvidia_smi("topo", "-m")
    if printed is None:
        return [skipped("nvlink", "this machine has no NVIDIA GPU")]
    return judge(read_links(printed))


def read_links(printed: str) -> dict[tuple[int, int], str]:
    """Return the link of each pair of GPUs, smaller number first, by the driver's abbreviation."""
    lines = [line.split() for line in re.sub(r"\x1b\[\d*m", "", printed).splitlines()]
    links: dict[tuple[int, int], str] = {}
    for cells in lines:
        if len(cells) > 1 and (name := re.fullmatch(r"GPU(\d+)", cells[0])) and "X" in cells:
            one = int(name[1])
            links |= {(one, other): cell for other, cell in enumerate(cells[1 : cells.index("X") + 1]) if other < one}
    return {(other, one): cell for (one, other), cell in links.items()}


def judge(links: Mapping[tuple[int, int], str]) -> list[Finding]:
    """Return the findings about the links of one node, over which replicas and their gradients travel."""
    if not links:
        return [skipped("nvlink", "one GPU, so no links")]
    slow = {pair: kind for pair, kind in links.items() if not kind.startswith("NV")}
    num_gpus = 1 + max(other for _, other in links)
    if not slow:
        kinds = sorted({int(kind.removeprefix("NV")) for kind in links.values()})
        return [ok("nvlink", f"NVLink joins all {num_gpus} GPUs, {'/'.join(map(str, kinds))} links a pair")]
    numbers = Counter(slow.values())
    reason = "; ".join(f"{number} pairs over {_WORDS.get(kind, kind)}" for kind, number in numbers.most_common())
    islands = _islands(links, num_gpus)
    if len(slow) == len(links):
        fix = (
            "replicas cost more here: measure with `make gpu-check`, then run `relibra calibrate --nvlink-gb-per-s`; "
            "or set redundant_slots=0 to reorder only"
        )
        return [warning("nvlink", f"no NVLink between {num_gpus} GPUs: {reason}", fix)]
    named = " ".join(f"({', '.join(map(str, island))})" for island in islands)
    fix = f"register each group as a node: gpus_per_node={min(map(len, islands))}"
    if len(islands) == 1:
        fix = "plan with the bandwidth of the slowest pair: `relibra calibrate --nvlink-gb-per-s`"
    return [warning("nvlink", f"NVLink joins {named} only; {reason}", fix)]


def _islands(links: Mapping[tuple[int, int], str], num_gpus: int) -> list[list[int]]:
    """Return the groups of GPUs that NVLink joins, directly or through other GPUs."""
    island_of = list(range(num_gpus))
    for (one, other), kind in links.items():
        if kind.startswith("NV"):
            joined = island_of[other]
            island_of = [island_of[one] if island == joined else island for island in island_of]
    return [[gpu for gpu in range(num_gpus) if island_of[gpu] == island] for island in sorted(set(island_of))]
