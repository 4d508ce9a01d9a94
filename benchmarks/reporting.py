"""Measure how long a driver waits to report and schedule a step, by the recipes of slime, verl, NeMo-RL and SkyRL.

    python -m benchmarks.reporting [--tokens 1000000] [--repeats 2]

One process plays the data-parallel ranks of a step one after the other, as slime's rollout manager does; in the other
frameworks each rank reports its own share at the same time. The model is shaped like Qwen3-30B-A3B (48 layers, top 8 of
128 experts), sequences have 2048 to 8192 tokens, micro-batches about 16384, and context and tensor parallelism of 2
split every sequence. Counts go to a real planner on loopback, durable in Redis.

- Rows: the path before counts were taken from the framework's arrays. It copies all rows into the order of the ranks,
  reports the rows of every part, and waits for the planner after every micro-batch. It counts with today's function,
  which is faster than the one that it had.
- Counts: `rank_batch`, `report_rank` and `submit_step`, as the recipes call them.
- Counted before (slime): the same, with routing that `RoutingCounter` counted when samples were finished.

With `BackgroundReporting` the driver waits for none of this.

*Wall* is the time that passes and *CPU* the processor time of this process, both per million tokens and the best of the
repeats. Writes `benchmarks/results/reporting.json`.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.service import free_port, start_planner
from relibra.integrations import (
    RankBatch,
    RankSchedule,
    RoutingCounter,
    TrainerLayout,
    nemo_rl,
    report_rank,
    skyrl,
    slime,
    submit_step,
    verl,
)
from relibra.integrations.rank_parts import rank_parts
from relibra.planning import Cluster, Model
from relibra.rollout import RolloutReporter
from relibra.routing import ModelLayers
from relibra.routing.token_layout import ParallelLayout
from relibra.store import EmbeddedRedis
from relibra.wire.client import PlannerClient

LAYERS = ModelLayers.uniform(num_layers=48, num_experts=128, top_k=8)
MODEL = Model(num_layers=48, num_experts=128, top_k=8)
RANKS = ParallelLayout(data=4, context=2, tensor=2, expert=8)
CLUSTER = Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=2, num_ep_groups=RANKS.num_ep_groups)
MICRO_BATCH_TOKENS = 16384


def main() -> None:
    """Measure, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    lengths = _lengths(arguments.tokens // RANKS.data)
    micro_batches = _micro_batches(lengths)
    num_tokens = sum(lengths) * RANKS.data
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder, EmbeddedRedis(Path(folder) / "redis") as redis:
        planner, address = start_planner(redis.url, free_port(), Path(folder))
        try:
            for framework, make in FRAMEWORKS.items():
                trainer, batch_of = make(lengths, micro_batches)
                paths: dict[str, Callable[..., RankSchedule]] = {"rows": _report_rows, "counts": report_rank}
                if framework == "slime":
                    paths["counted before"] = report_rank
                best: dict[str, dict[str, float]] = {}
                for repeat in range(arguments.repeats):
                    for path, report in paths.items():
                        job_id = f"{framework}-{path}-{repeat}"
                        batches = _counted_batches(lengths, micro_batches) if path == "counted before" else batch_of
                        times = _measure(address, job_id.replace(" ", "-"), batches, report, trainer)
                        if path not in best or times["wall"] < best[path]["wall"]:
                            best[path] = times
                for path, times in best.items():
                    per_million = {f"{name}_s": round(each * 1e6 / num_tokens, 3) for name, each in times.items()}
                    ratio = round(best["rows"]["wall"] / times["wall"], 2)
                    rows.append({"framework": framework, "path": path, **per_million, "times_as_fast": ratio})
                del batch_of
        finally:
            planner.terminate()
            planner.wait()
    Console().print(_table(rows))
    results.write("reporting", rows, num_tokens=num_tokens, load_average=[round(each, 1) for each in os.getloadavg()])


def _table(rows: list[dict[str, object]]) -> Table:
    table = Table(*rows[0], title="seconds per million tokens")
    for row in rows:
        table.add_row(*map(str, row.values()))
    return table


def _measure(
    address: str,
    job_id: str,
    batch_of: Callable[[], RankBatch],
    report: Callable[..., RankSchedule],
    trainer: TrainerLayout,
) -> dict[str, float]:
    """Report a step of all data-parallel ranks and submit it; return the seconds of each stage."""
    times = {"wall": 0.0, "cpu": 0.0, "decode": 0.0, "report": 0.0, "submit": 0.0}
    with (
        PlannerClient(address, timeout_s=60) as planner,
        RolloutReporter(address, job_id, num_experts=128, buffer_size_bytes=1 << 30) as reporter,
    ):
        planner.register_job(job_id, MODEL, CLUSTER)
        reporter.report(0, "warm", np.zeros((1, 48, 8), dtype=np.uint8) + np.arange(8, dtype=np.uint8))
        reporter.flush()
        cpu, started = time.process_time(), time.perf_counter()
        ranks = []
        for data_rank in range(RANKS.data):
            at = time.perf_counter()
            batch = batch_of()
            times["decode"] += time.perf_counter() - at
            at = time.perf_counter()
            ranks.append(report(reporter, 1, batch, data_rank, trainer))
            times["report"] += time.perf_counter() - at
        at = time.perf_counter()
        submit_step(planner, job_id, 1, ranks)
        times["submit"] = time.perf_counter() - at
        times["wall"], times["cpu"] = time.perf_counter() - started, time.process_time() - cpu
        # The planner solves now; it must not share the cores with the next measurement.
        planner.fetch_plan(job_id, 1, MODEL, 0, wait_s=120)
    return times


def _report_rows(
    reporter: RolloutReporter, step: int, batch: RankBatch, data_rank: int, trainer: TrainerLayout
) -> RankSchedule:
    trace = rank_parts(batch, data_rank, trainer)
    schedule = trace.schedule
    assert schedule is not None
    sequence_ids = tuple(f"rank-{data_rank}/part-{part}" for part in range(trace.num_sequences))
    micro_batch = -1
    for part, (first, end) in enumerate(pairwise(trace.offsets)):
        if schedule.micro_batch_S[part] != micro_batch:
            micro_batch = int(schedule.micro_batch_S[part])
            reporter.flush()
        assert reporter.report(step, sequence_ids[part], trace.routed_experts[first:end])
    reporter.flush()
    return RankSchedule(sequence_ids=sequence_ids, schedule=schedule)


def _lengths(num_tokens: int) -> list[int]:
    rng = np.random.default_rng(0)
    lengths: list[int] = []
    while sum(lengths) < num_tokens:
        lengths.append(int(rng.integers(2048, 8192)))
    return lengths


def _micro_batches(lengths: list[int]) -> list[list[int]]:
    micro_batches: list[list[int]] = [[]]
    for index, length in enumerate(lengths):
        if micro_batches[-1] and sum(lengths[each] for each in micro_batches[-1]) + length > MICRO_BATCH_TOKENS:
            micro_batches.append([])
        micro_batches[-1].append(index)
    return micro_batches


def _ids(num_rows: int) -> NDArray[np.uint8]:
    """Return skewed routes: 1024 drawn rows, repeated in a drawn order."""
    rng = np.random.default_rng(1)
    logits = rng.gumbel(size=(1024, 48, 128)) + np.linspace(0, 2, 128)
    drawn = np.argsort(-logits, axis=-1)[..., :8].astype(np.uint8)
    return drawn[rng.integers(0, len(drawn), num_rows)]


Make = Callable[[list[int], list[list[int]]], tuple[TrainerLayout, Callable[[], RankBatch]]]


def _slime_data(lengths: list[int], micro_batches: list[list[int]]) -> dict[str, Any]:
    return {
        "tokens": [range(length) for length in lengths],
        "rollout_routed_experts": [_ids(length - 1).astype(np.int32) for length in lengths],
        "micro_batch_indices": micro_batches,
        "num_microbatches": [len(micro_batches)],
    }


def _slime(lengths: list[int], micro_batches: list[list[int]]) -> tuple[TrainerLayout, Callable[[], RankBatch]]:
    data = _slime_data(lengths, micro_batches)
    return slime.trainer_layout(RANKS), lambda: slime.rank_batch(data, LAYERS)


def _counted_batches(lengths: list[int], micro_batches: list[list[int]]) -> Callable[[], RankBatch]:
    """Return the batches of slime's ranks, whose samples a counter got earlier and has counted by now."""
    data = _slime_data(lengths, micro_batches)
    counters = [RoutingCounter(LAYERS) for _ in range(RANKS.data)]
    for counter in counters:
        for payload, tokens in zip(data["rollout_routed_experts"], data["tokens"], strict=True):
            counter.add(payload, len(tokens))
        counter.wait()
    return lambda: slime.rank_batch(data, LAYERS, counter=counters.pop())


def _verl(lengths: list[int], micro_batches: list[list[int]]) -> tuple[TrainerLayout, Callable[[], RankBatch]]:
    def jagged(values: torch.Tensor, sizes: list[int]) -> SimpleNamespace:
        offsets = torch.tensor(np.cumsum([0, *sizes]))
        return SimpleNamespace(values=lambda: values, offsets=lambda: offsets)

    sizes = [length - 1 for length in lengths]
    routed = torch.from_numpy(_ids(sum(sizes)).astype(np.int16))
    data = {"input_ids": jagged(torch.zeros(0), lengths), "routed_experts": jagged(routed, sizes)}
    return verl.trainer_layout(RANKS), lambda: verl.rank_batch(data, micro_batches, micro_batches, LAYERS)


def _padded(lengths: list[int], *, is_left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    most = max(lengths)
    routed_BSXK = np.empty((len(lengths), most, 48, 8), dtype=np.int16)
    routed_BSXK[:] = np.arange(8)
    mask_BS = np.zeros((len(lengths), most), dtype=np.int64)
    for place, length in enumerate(lengths):
        start = most - length if is_left else 0
        routed_BSXK[place, start : start + length - 1] = _ids(length - 1)
        mask_BS[place, start : start + length] = 1
    return torch.from_numpy(routed_BSXK), torch.from_numpy(mask_BS)


class _NemoBatch(dict[str, Any]):
    micro_batch_indices: list[list[list[int]]] | None = None


def _nemo_rl(lengths: list[int], micro_batches: list[list[int]]) -> tuple[TrainerLayout, Callable[[], RankBatch]]:
    routed, mask = _padded(lengths, is_left=False)
    batch = _NemoBatch(routed_experts=routed, input_lengths=mask.sum(dim=1))
    batch.micro_batch_indices = [[[each[0], each[-1] + 1] for each in micro_batches]]
    return nemo_rl.trainer_layout(RANKS, 16), lambda: nemo_rl.rank_batch(batch, LAYERS)


def _skyrl(lengths: list[int], micro_batches: list[list[int]]) -> tuple[TrainerLayout, Callable[[], RankBatch]]:
    routed, mask = _padded(lengths, is_left=True)
    batch = {"rollout_expert_indices": routed, "attention_mask": mask}
    places = SimpleNamespace(_microbatches=micro_batches, num_padding_microbatches=0)
    return skyrl.trainer_layout(RANKS), lambda: skyrl.rank_batch(batch, LAYERS, places)


FRAMEWORKS: dict[str, Make] = {"slime": _slime, "verl": _verl, "nemo-rl": _nemo_rl, "skyrl": _skyrl}

if __name__ == "__main__":
    main()
