"""`python -m harness.agent.node_ranks FOLDER` forks the four ranks of a node, and the ranks run all scenarios.

Every rank writes its results to `FOLDER/rank<r>.json`. The scenarios of transports first run in two pairs of ranks, as
`pair/<name>`. At the end the last rank dies, and then one rank of a pair.
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

from harness.agent import (
    choice_scenarios,
    contract_scenarios,
    host_scenarios,
    loss_scenarios,
    node_scenarios,
    shared_memory_scenarios,
)

WORLD = node_scenarios.WORLD
TIMEOUT_S = 20.0
TRANSPORTS = (
    contract_scenarios.SCENARIOS
    | choice_scenarios.SCENARIOS
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
