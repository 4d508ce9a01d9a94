"""A trace of one micro-batch, in which transfers take as long as the computation beside them.

Every layer computes until the transfers under way have arrived, so that their overlap does not depend on speed.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, _ExperimentalConfig, profile, record_function

from harness.distributed.matrix import balanced_job
from relibra.agent import Phase
from relibra.agent.cells.layer import LayerExecution
from relibra.agent.experts import SequentialExperts
from relibra.agent.transport import SymmetricTransport
from relibra.planning import Cluster

DEADLINE_S = 10.0
Result = dict[str, Any]


def compute_until(is_over: Callable[[], bool]) -> None:
    matrix, deadline_s = torch.ones(64, 64), time.monotonic() + DEADLINE_S
    while not is_over() and time.monotonic() < deadline_s:
        matrix @ matrix


def timeline(cluster: Cluster) -> Result:
    """Return the spans of agent, layers and attention, each as (name, thread, begin, end) in microseconds."""
    job, _ = balanced_job(cluster, transport="symmetric")
    agent = job.agent
    assert agent is not None
    start, run, compute = SymmetricTransport.start, SequentialExperts.run, LayerExecution.compute
    started = []

    def noted_start(self: SymmetricTransport, *args: Any) -> Any:
        transfer = start(self, *args)
        started.extend(transfer._marks)
        return transfer

    def has_arrived() -> bool:
        return all(mark.is_over.is_set() for mark in started)

    def busy_run(self: SequentialExperts, *args: Any) -> torch.Tensor:
        compute_until(has_arrived)
        return run(self, *args)

    def named_compute(self: LayerExecution, *args: Any, **kwargs: Any) -> Any:
        with record_function(f"forward layer {self.index}"):
            return compute(self, *args, **kwargs)

    def busy_backward(*_: Any) -> None:
        with record_function("attention backward"):
            compute_until(has_arrived)

    attentions = [layer.self_attention for layer in job.models[0].decoder.layers]
    handles = [each.register_full_backward_pre_hook(busy_backward) for each in attentions]
    agent.begin_step(0, Phase.UPDATE)
    threads = _ExperimentalConfig(profile_all_threads=True)
    with (
        mock.patch.object(SymmetricTransport, "start", noted_start),
        mock.patch.object(SequentialExperts, "run", busy_run),
        mock.patch.object(LayerExecution, "compute", named_compute),
        profile(activities=[ProfilerActivity.CPU], experimental_config=threads) as profiled,
    ):
        job.run(0, 1)
    for handle in handles:
        handle.remove()
    agent.detach()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    names = ("relibra::", "forward layer", "attention backward")
    return {
        "spans": [
            (event["name"], event["tid"], event["ts"], event["ts"] + event["dur"])
            for event in events
            if event.get("cat") == "user_annotation" and event["name"].startswith(names)
        ]
    }


SCENARIOS: dict[str, Callable[[Cluster], Result]] = {"timeline": timeline}
