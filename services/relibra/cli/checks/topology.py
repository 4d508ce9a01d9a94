"""What connects the GPUs of this machine, in plain words, from `nvidia-smi topo -m`."""

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
    """Ask the driver."""
    printed = run_nvidia_smi("topo", "-m")
    if printed is None:
        return [skipped("nvlink", "no NVIDIA GPU here")]
    return judge(read_links(printed))


def read_links(printed: str) -> dict[tuple[int, int], str]:
    """Return what connects each pair of GPUs, in the driver's abbreviations, the smaller number first."""
    lines = [line.split() for line in re.sub(r"\x1b\[\d*m", "", printed).splitlines()]
    links: dict[tuple[int, int], str] = {}
    for cells in lines:
        if len(cells) > 1 and (name := re.fullmatch(r"GPU(\d+)", cells[0])) and "X" in cells:
            one = int(name[1])
            links |= {(one, other): cell for other, cell in enumerate(cells[1 : cells.index("X") + 1]) if other < one}
    return {(other, one): cell for (one, other), cell in links.items()}


def judge(links: Mapping[tuple[int, int], str]) -> list[Finding]:
    """Judge the links of one node: replicas and their gradients travel over them."""
    if not links:
        return [skipped("nvlink", "one GPU, hence no links")]
    slow = {pair: kind for pair, kind in links.items() if not kind.startswith("NV")}
    num_gpus = 1 + max(other for _, other in links)
    if not slow:
        kinds = sorted({int(kind.removeprefix("NV")) for kind in links.values()})
        return [ok("nvlink", f"all {num_gpus} GPUs reach each other over NVLink, {'/'.join(map(str, kinds))} links")]
    numbers = Counter(slow.values())
    reason = "; ".join(f"{number} pairs over {_WORDS.get(kind, kind)}" for kind, number in numbers.most_common())
    islands = _islands(links, num_gpus)
    if len(slow) == len(links):
        fix = (
            "replicas cost more here: measure with `make gpu-check`, then `relibra calibrate --nvlink-gb-per-s`; "
            "redundant_slots=0 leaves reordering alone"
        )
        return [warning("nvlink", f"no NVLink between {num_gpus} GPUs: {reason}", fix)]
    named = " ".join(f"({', '.join(map(str, island))})" for island in islands)
    fix = f"call each group a node: gpus_per_node={min(map(len, islands))}"
    if len(islands) == 1:
        fix = "plan with the slowest pair: `relibra calibrate --nvlink-gb-per-s`"
    return [warning("nvlink", f"NVLink joins {named} only; {reason}", fix)]


def _islands(links: Mapping[tuple[int, int], str], num_gpus: int) -> list[list[int]]:
    """Groups of GPUs that reach each other over NVLink, perhaps through others."""
    island_of = list(range(num_gpus))
    for (one, other), kind in links.items():
        if kind.startswith("NV"):
            joined = island_of[other]
            island_of = [island_of[one] if island == joined else island for island in island_of]
    return [[gpu for gpu in range(num_gpus) if island_of[gpu] == island] for island in sorted(set(island_of))]
