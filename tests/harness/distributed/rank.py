"""`python -m harness.distributed.rank` imports megatron once, and starts the ranks of one layout after another.

Each message in its input (`ranks.Start`) names a layout. A rank connects to the test, and then calls one function
(`ranks.Call`) after the other, with equal seeds and without the agents of the calls before. A function that raises ends
its rank: the other ranks would wait for it in vain.

On the CPU, ranks are forks of this process. A process that may have asked for a CUDA device must not be forked, so
ranks on a device start anew and import megatron themselves.
"""

import ast
import contextlib
import gc
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Client
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from _pytest.assertion.rewrite import rewrite_asserts

from harness.distributed import device

device.install()

from megatron.core import parallel_state  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402

from harness.distributed.layout import Layout  # noqa: E402
from harness.distributed.ranks import Answer, Call, Start  # noqa: E402
from relibra.agent import Agent  # noqa: E402
from relibra.planning.split import source_share  # noqa: E402

COLLECTIVE_TIMEOUT_S = 120.0
"""Long, because ranks also wait for a rank that starts services on a busy machine."""


def module_of(file: str, name: str) -> ModuleType:
    """Import a file of tests by its path, with pytest's explanations of failed assertions."""
    if name not in sys.modules:
        source = Path(file).read_bytes()
        tree = ast.parse(source)
        rewrite_asserts(tree, source, file)
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = file
        exec(compile(tree, file, "exec"), vars(module))
    return sys.modules[name]


def arrange(layout: Layout) -> None:
    """Make megatron's process groups of a layout."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor_parallel_size,
        context_parallel_size=layout.context_parallel_size,
        pipeline_model_parallel_size=layout.num_stages,
        virtual_pipeline_model_parallel_size=layout.num_chunks,
        expert_model_parallel_size=layout.cluster.num_ranks,
        expert_tensor_parallel_size=layout.expert_tensor_parallel_size,
        distributed_timeout_minutes=2,
    )


@contextlib.contextmanager
def ending_agents() -> Iterator[None]:
    """Unhook the agents that attach in the body, and close their groups, whose threads look for messages."""
    agents, plain = list[Agent](), Agent.__init__

    def initialise(self: Agent, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        agents.append(self)

    with mock.patch.object(Agent, "__init__", initialise):
        yield
    dist.barrier()
    for agent in agents:
        agent._unhook()
        agent._groups.close()
    agents.clear()
    gc.collect()


def begin_anew() -> None:
    """Forget the calls before: seeds, and the logged losses, whose number of layers is that of the first model."""
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    if hasattr(moe_utils, "get_moe_metrics_tracker"):  # from megatron-core 0.18 on
        moe_utils.get_moe_metrics_tracker().metrics.clear()
    else:
        moe_utils.get_moe_layer_wise_logging_tracker().clear()


def answer(layout: Layout, call: Call) -> Answer:
    """Call the function."""
    begin_anew()
    try:
        function = getattr(module_of(call.file, call.module), call.name)
        with contextlib.nullcontext() if call.is_last else ending_agents():
            value = function(layout.cluster, **call.arguments)
        return Answer(value)
    except pytest.skip.Exception as skipped:
        return Answer(skipped=str(skipped))
    except Exception:
        return Answer(raised=traceback.format_exc())


def run_rank(rank: int, start: Start) -> None:
    """Join the other ranks, and call functions until the test closes the connection."""
    warnings.simplefilter("ignore")
    logging.getLogger("megatron").setLevel(logging.ERROR)
    layout = start.layout
    connection = Client(f"{start.folder}/ranks.sock")
    connection.send((rank, os.getpid()))
    device.join(rank, layout.num_ranks, start.folder, COLLECTIVE_TIMEOUT_S)
    arrange(layout)
    while True:
        try:
            call = connection.recv()
            result = answer(layout, call)
            connection.send(result)
        except (EOFError, OSError):
            os._exit(0)
        if result.raised or call.is_last:
            os._exit(0)


def load_compiled_split() -> None:
    """Split no tokens, so that all ranks share what numba imports and loads for the first split."""
    nothing = np.zeros(0, dtype=np.int32)
    source_share(np.zeros((1, 1), dtype=np.int64), np.zeros(1, dtype=np.int32), nothing, nothing, 1, 0)


def main() -> None:
    """Start the ranks that the input names."""
    load_compiled_split()
    gc.freeze()  # megatron collects garbage in every checkpoint; without this it would scan all imported objects
    is_on_cpu = device.WAY is device.Way.CPU
    context: Any = multiprocessing.get_context("fork" if is_on_cpu else "spawn")
    while True:
        try:
            start: Start = pickle.load(sys.stdin.buffer)
        except EOFError:
            # The test has ended without its ranks, which may be stopped.
            return os.killpg(0, signal.SIGKILL)
        if is_on_cpu:
            module_of(start.file, start.module)
        for rank in range(start.layout.num_ranks):
            context.Process(target=run_rank, args=(rank, start)).start()  # this also reaps the ranks that ended


if __name__ == "__main__":
    main()
