"""DeepSeek-V3 on its own counts: the sequences of a step mix the six workloads of its published expert statistics."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks import results
from benchmarks.evaluation.cases import DISPATCHERS, MAIN_POLICIES, Case, Rows, question, rows_on
from benchmarks.workload_mix import mix_workloads
from relibra.evaluation.workload import Workload
from relibra.planning import Schedule

_MODEL = "deepseek-v3"
_SEQUENCES_PER_RANK = 2


def counts() -> Iterator[Case]:
    """Yield one case for every number of ranks."""
    for ep in (32, 16):
        yield partial(_rows, ep)


def _rows(ep: int) -> Rows:
    drawn, found = steps(ep), Rows()
    for dispatcher in DISPATCHERS:
        training = question(_MODEL, ep, dispatcher=dispatcher).training
        found += rows_on(drawn, training, MAIN_POLICIES, model=_MODEL, ep=ep, dispatcher=dispatcher.value)
    return found


def steps(ep: int) -> tuple[Workload, Workload]:
    """Return two consecutive steps."""
    return _step(ep, 0), _step(ep, 1)


def _step(ep: int, seed: int) -> Workload:
    """Draw a step with a mean of 8192 tokens per rank and micro-batch."""
    asked = question(_MODEL, ep)
    num_sequences = asked.num_micro_batches * ep * _SEQUENCES_PER_RANK
    with np.load(results.TRACES / "deepseek-v3_counts_dev.npz") as file:
        counts_SLE = mix_workloads(
            file["expert_counts"],
            num_sequences=num_sequences,
            tokens_per_sequence=asked.tokens_per_rank // _SEQUENCES_PER_RANK,
            top_k=asked.model.top_k,
            seed=seed,
        )
    return Workload(
        counts_SLE=counts_SLE,
        length_S=counts_SLE[:, 0].sum(axis=-1, dtype=np.int64) // asked.model.top_k,
        schedule=Schedule.round_robin(num_sequences, asked.num_micro_batches, asked.cluster),
        cluster=asked.cluster,
    )
