"""The RL loop. It drives one rollout worker and one process per trainer rank over pipes.

M micro-batches, L MoE layers, R EP ranks.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from relibra.demo.batch import Batch, Weights, schedule_in_order, sequence_ids
from relibra.demo.shape import CLUSTER, MODEL, NUM_MICRO_BATCHES, Registration
from relibra.demo.worker import Worker
from relibra.wire.client import PlannerClient


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of one run."""

    batch: Batch
    num_resampled: int
    """Sequences that this run sampled or routed otherwise than the recorded run."""
    loss: float
    grad_norm: float
    load_MLR: NDArray[np.int64]
    """Token copies that each rank computed in UPDATE."""
    applied: tuple[str, str]
    """Plan ids of RECOMPUTE and UPDATE, empty for the plain run."""
    reason: str
    """The agent's reason for applying a plan in UPDATE, or for applying none."""
    weights: Weights


class Job:
    """A rollout worker and `CLUSTER.num_ranks` trainers. In a balanced job each trainer has a relibra agent."""

    def __init__(self, folder: Path, registration: Registration, *, balanced: bool, seed: int) -> None:
        self._folder = folder
        self._registration = registration
        self._balanced = balanced
        self._seed = seed
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        rollouts, trainers = self._folder / "rollout", self._folder / "trainers"
        agents = self._registration if self._balanced else None
        with ExitStack() as undo:
            self._rollout = Worker(
                "the rollout worker", "relibra.demo.rollout", self._seed, rollouts, self._registration
            )
            undo.callback(self._rollout.close)
            self._trainers = []
            for rank in range(CLUSTER.num_ranks):
                arguments = (self._seed, trainers, agents, rank)
                self._trainers.append(Worker(f"trainer {rank}", "relibra.demo.trainer", *arguments))
                undo.callback(self._trainers[-1].close)
            self._load_rollout(self._ask_all("weights"))
            self._exit = undo.pop_all()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with self._exit:
            if error is None:
                self._ask_all("finish")

    def _ask_all(self, *command: object, each: Sequence[Sequence[object]] | None = None) -> list[Any]:
        for rank, trainer in enumerate(self._trainers):
            trainer.ask(*command, *(each[rank] if each else ()))
        return Worker.answers(self._trainers)

    def _ask_rollout(self, *command: object) -> Any:
        self._rollout.ask(*command)
        return Worker.answers([self._rollout])[0]

    def _load_rollout(self, parts: list[Weights]) -> Weights:
        weights = {name: value for part in parts for name, value in part.items()}
        self._ask_rollout("load", weights)
        return weights

    def step(self, step: int, recorded: Batch | None) -> StepRecord:
        """Run one RL step: rollout, plan if balanced, RECOMPUTE, UPDATE, weights back to the rollout worker.

        If `recorded` is given, the step trains on that rollout instead of its own, because two runs on different data
        cannot be compared: weights that differ in the last bit can change a sample at a near tie. The record counts how
        many sequences of this run's own rollout differ from it.
        """
        own: Batch = self._ask_rollout("generate", step)
        batch = recorded or own
        schedule = schedule_in_order(len(batch.tokens), CLUSTER.num_ranks)
        if self._balanced:
            self._ask_rollout("report", step, batch)
            with PlannerClient(self._registration.planner_address, attempt=self._registration.attempt) as planner:
                planner.submit_schedule(self._registration.job_id, step, sequence_ids(len(batch.tokens)), schedule)
        shares = [
            [
                batch.select(np.flatnonzero((schedule.source_rank_S == rank) & (schedule.micro_batch_S == micro_batch)))
                for micro_batch in range(NUM_MICRO_BATCHES)
            ]
            for rank in range(CLUSTER.num_ranks)
        ]
        results = self._ask_all("step", step, each=[[share] for share in shares])
        return StepRecord(
            batch=batch,
            num_resampled=own.num_different(batch),
            loss=sum(result.loss for result in results) / len(results),
            grad_norm=results[0].grad_norm,
            load_MLR=np.stack([result.load_ML for result in results], axis=-1),
            applied=results[0].applied,
            reason=results[0].reason,
            weights=self._load_rollout([result.weights for result in results]),
        )


def register(registration: Registration) -> None:
    """Register the job with the planner."""
    with PlannerClient(registration.planner_address, attempt=registration.attempt) as planner:
        planner.register_job(registration.job_id, MODEL, CLUSTER)


def end(registration: Registration) -> None:
    """Tell the planner that the job ended."""
    with PlannerClient(registration.planner_address, attempt=registration.attempt) as planner:
        planner.end_attempt(registration.job_id)
