"""`python node_ranks.py FOLDER`: fork the four ranks of a node, run all scenarios, write `FOLDER/rank<r>.json`.

Those of transports run in two pairs first, as `pair/<name>`. In the end the last rank dies, and then one of a pair.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp

sys.path += [str(Path(__file__).parents[1] / "distributed"), str(Path(__file__).with_name("transport"))]
import contract_scenarios
import host_scenarios
import loss_scenarios
import node_scenarios
import peer_scenarios
import shared_memory_scenarios

WORLD = node_scenarios.WORLD
TIMEOUT_S = 20.0
TRANSPORTS = (
    contract_scenarios.SCENARIOS
    | peer_scenarios.SCENARIOS
    | shared_memory_scenarios.SCENARIOS
    | host_scenarios.SCENARIOS
)
Scenarios = Mapping[str, Callable[[dist.ProcessGroup], dict[str, Any]]]


def run_rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    timeout = timedelta(seconds=TIMEOUT_S)
    pairs = [dist.new_group([first, first + 1], timeout=timeout) for first in (0, 2)]
    node = dist.new_group(list(range(WORLD)), timeout=timeout)
    results: dict[str, object] = {}

    def run(scenarios: Scenarios, group: dist.ProcessGroup, prefix: str = "") -> None:
        for name, scenario in scenarios.items():
            try:
                results[prefix + name] = scenario(group)
            except Exception:
                results[prefix + name] = {"error": traceback.format_exc()}
            Path(folder, f"rank{rank}.json").write_text(json.dumps(results))

    run(TRANSPORTS, pairs[rank // 2], "pair/")
    run(TRANSPORTS | node_scenarios.SCENARIOS | loss_scenarios.SCENARIOS, node)
    if rank < 2:
        run(loss_scenarios.SCENARIOS, pairs[0], "pair/")
    os._exit(0)


if __name__ == "__main__":
    mp.start_processes(run_rank, args=(sys.argv[1],), nprocs=WORLD, start_method="fork")
