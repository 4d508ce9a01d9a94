"""Ranks that run the scenarios of a framework one after the other, and write which of them failed."""

import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from harness.plugin_contract import Rank, Scenario

TIMEOUT_S = 60.0


def run(prepare: Callable[[Path], None], scenarios: Mapping[str, Scenario], *, num_ranks: int = 2) -> None:
    """Run all scenarios on gloo ranks, with the folder and the planner that the command line names.

    Rank r of n writes to `FOLDER/<n> ranks/rank<r>.json` an object with `error`, if it failed, for each scenario.

    Args:
        prepare: writes what all scenarios share, before the ranks start.
        scenarios: the scenarios by name, in order.
        num_ranks: the number of ranks.
    """
    logging.getLogger("megatron").setLevel(logging.ERROR)
    folder, planner = Path(sys.argv[1], f"{num_ranks} ranks"), sys.argv[2]
    folder.mkdir()
    prepare(folder)
    mp.start_processes(_run_rank, args=(num_ranks, folder, planner, scenarios), nprocs=num_ranks, start_method="fork")


def _run_rank(rank: int, num_ranks: int, folder: Path, planner: str, scenarios: Mapping[str, Scenario]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(num_ranks), LOCAL_RANK=str(rank))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    results: dict[str, dict[str, str]] = {}
    for name, scenario in scenarios.items():
        results[name] = {}
        is_in_step = True
        try:
            scenario(Rank(number=rank, folder=folder, planner=planner))
        except Exception as error:
            results[name] = {"error": traceback.format_exc()}
            is_in_step = isinstance(error, AssertionError)  # which comes after what ranks do together
        Path(folder, f"rank{rank}.json").write_text(json.dumps(results))
        if not is_in_step:
            os._exit(1)
    dist.barrier()
    os._exit(0)  # threads of agents whose planner is away need not be waited for
