"""`python -m harness.distributed.scenario_ranks` imports megatron once, and starts the ranks of layouts in turn.

Every line of its input is `LAYOUT FOLDER`. The ranks of that layout run its scenarios one after the other, and the line
`done` in the output says that all ranks have ended. Every rank writes what it measured to `FOLDER/rank<r>.json` after
each scenario. A scenario that raises ends its rank, and with it the run: the other ranks would wait for that rank in
vain.

On the CPU, ranks are forks of this process. A process that may have asked for a CUDA device must not be forked, so
ranks on a device start anew and import megatron themselves.
"""

import gc
import json
import logging
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing import ProcessExitedException

from harness.distributed import device

device.install()

from megatron.core import parallel_state  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402

from harness.distributed import layouts  # noqa: E402  (builds on megatron, shims first)

IS_ON_CPU = device.WAY.device == "cpu"
COLLECTIVE_TIMEOUT_S = 120.0
"""Long, because ranks also wait for a rank that starts services on a busy machine."""


def run_rank(rank: int, layout: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("megatron").setLevel(logging.ERROR)
    arrangement = layouts.LAYOUTS[layout]
    device.join(rank, arrangement.num_ranks, folder, COLLECTIVE_TIMEOUT_S)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=arrangement.tensor_parallel_size,
        context_parallel_size=arrangement.context_parallel_size,
        pipeline_model_parallel_size=arrangement.num_stages,
        virtual_pipeline_model_parallel_size=arrangement.num_chunks,
        expert_model_parallel_size=arrangement.cluster.num_ranks,
        expert_tensor_parallel_size=arrangement.expert_tensor_parallel_size,
        distributed_timeout_minutes=2,
    )
    model_parallel_cuda_manual_seed(1)
    results: dict[str, object] = {}
    for name in arrangement.scenarios:
        failed = False
        began = time.monotonic()
        try:
            results[name] = arrangement.scenarios[name](arrangement.cluster)
        except Exception:
            results[name] = {"error": traceback.format_exc()}
            failed = True
        print(f"rank {rank}: {name} took {time.monotonic() - began:.2f} s", flush=True)
        Path(folder, f"rank{rank}.json").write_text(json.dumps(results))
        if failed:
            os._exit(1)
    if arrangement.is_fatal:
        os._exit(0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    gc.freeze()  # megatron collects garbage in every checkpoint; without this it would scan all imported objects
    for line in sys.stdin:
        layout, folder = line.split()
        num_ranks = layouts.LAYOUTS[layout].num_ranks
        for rank in range(num_ranks):
            Path(folder, f"rank{rank}.json").write_text("{}")
        try:
            method = "fork" if IS_ON_CPU else "spawn"
            mp.start_processes(run_rank, args=(layout, folder), nprocs=num_ranks, start_method=method)
        except ProcessExitedException as error:
            print(error, flush=True)
        print("done", flush=True)
