"""`python -m harness.verl.ranks FOLDER PLANNER`: two ranks run verl's engine, plain and with the plug-in, side by side.

Rank r writes what it measured to `FOLDER/rank<r>.json`.
"""

import json
import logging
import os
import sys
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from relibra.demo import megatron_on_cpu

os.environ["VERL_PLATFORM"] = "cpu"
megatron_on_cpu.install()

from harness.verl import stand_ins  # noqa: E402  (builds on megatron, shims first)

stand_ins.install()

import verl.workers.engine  # noqa: E402, F401  (loaded in every worker with an engine)

from harness.verl import scenarios  # noqa: E402

TIMEOUT_S = 60.0


def run_rank(rank: int, folder: str, planner: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=timedelta(seconds=TIMEOUT_S)
    )
    results: dict[str, Any] = {}
    for name, scenario in scenarios.SCENARIOS.items():
        try:
            results[name] = scenario(rank, Path(folder), planner)
        except Exception:
            results[name] = {"error": traceback.format_exc()}
        Path(folder, f"rank{rank}.json").write_text(json.dumps(results))
        if "error" in results[name]:
            os._exit(1)
    dist.barrier()
    os._exit(0)  # threads of agents whose planner is away need not be waited for


if __name__ == "__main__":
    logging.getLogger("megatron").setLevel(logging.ERROR)
    scenarios.prepare(Path(sys.argv[1]))
    mp.start_processes(run_rank, args=(sys.argv[1], sys.argv[2]), nprocs=2, start_method="fork")
