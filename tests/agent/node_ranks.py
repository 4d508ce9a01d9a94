"""`python node_ranks.py FOLDER`: fork the four ranks of a node, run all scenarios, write `FOLDER/rank<r>.json`.

The last scenario kills a rank.
"""

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp

sys.path += [str(Path(__file__).parents[1] / "distributed")]
from node_scenarios import SCENARIOS, WORLD

TIMEOUT_S = 5.0


def run_rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    group = dist.new_group(list(range(WORLD)), timeout=timedelta(seconds=TIMEOUT_S))
    results: dict[str, object] = {}
    for name, scenario in SCENARIOS.items():
        try:
            results[name] = scenario(group)
        except Exception:
            results[name] = {"error": traceback.format_exc()}
        Path(folder, f"rank{rank}.json").write_text(json.dumps(results))
    os._exit(0)


if __name__ == "__main__":
    mp.start_processes(run_rank, args=(sys.argv[1],), nprocs=WORLD, start_method="fork")
