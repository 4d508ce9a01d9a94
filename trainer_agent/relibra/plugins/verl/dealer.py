"""The driver of a job deals the sequences of a batch to data-parallel ranks near the experts that they use."""

import logging
import os
import uuid
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.agent.plans.trouble import Trouble
from relibra.errors import RelibraError, Unavailable, Unsupported
from relibra.planning import Freedom
from relibra.plugins.verl.dealing import dealt_by_verl, order_of
from relibra.plugins.verl.driver_batch import routing_of
from relibra.plugins.verl.trained_job import TrainedJob, trained_job
from relibra.rollout import RolloutReporter
from relibra.steps.packing import Dealt, PackableStep, check_packable, pack_step
from relibra.wire.client import PlannerClient

log = logging.getLogger(__name__)

_ASK_TIMEOUT_S = 10.0
_PACKED = "relibra/packed"


class Dealer:
    """Deals the batches of one trainer. Whatever fails leaves verl's own order, and the log says so once.

    Args:
        trainer: verl's trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._unpacked = Trouble("relibra chooses the ranks of sequences again, after %d batches in verl's own order")
        self._planner: PlannerClient | None = None
        self._reporter: RolloutReporter | None = None
        self._has_said = False

    def deal(self, batch: Any, queue: Any, metrics: dict[str, Any], prefix: str) -> None:
        """Bring a batch that verl has dealt into an order with which verl deals it as the planner advises.

        Args:
            batch: the batch, a `KVBatchMeta`.
            queue: verl's module `transfer_queue`.
            metrics: what verl logs of the step. The balance of lengths is brought up to date, and `relibra/packed` says
                whether relibra dealt (1) or verl's own order stays (0).
            prefix: how the names of verl's metrics of the balance begin.
        """
        metrics[_PACKED] = 0
        message = "relibra: sequences keep the data-parallel ranks that verl chose: %s"
        try:
            self._deal(batch, queue, metrics, prefix)
        except RelibraError as error:
            self._unpacked.note((type(error).__name__, str(error).partition(":")[0]), message, error)
        except Exception as error:  # any error: training goes on with verl's own order
            text = f"{type(error).__name__}: {error}"
            self._unpacked.note(text, message, text, level=logging.ERROR, exc_info=True)
        else:
            metrics[_PACKED] = 1
            self._unpacked.over()

    def _deal(self, batch: Any, queue: Any, metrics: dict[str, Any], prefix: str) -> None:
        job = ask_first_worker(self._trainer.actor_rollout_wg)
        if job is None:
            raise Unsupported("the training process of rank 0 has no engine of relibra; is the strategy megatron?")
        check_replay(self._trainer.config)
        if job.cluster.num_nodes == 1:
            raise Unsupported("every EP group is on one machine, where all sequences start near all experts")
        if not job.is_registered:
            raise Unavailable("the planner is away, or has lost the job")
        check_packable(job.ranks, job.cluster)
        length_S = np.array([tag["seq_len"] for tag in batch.tags], dtype=np.int64)
        verls = dealt_by_verl(len(length_S), job.ranks.data, mini_batch_sizes(self._trainer, len(length_S)))
        dealt, reason = self._pack(job, routing_of(batch, queue), length_S, verls)
        order_S = order_of(dealt, verls)
        batch.reorder(order_S.tolist())
        metrics.update(_balance_of(length_S[order_S], job.ranks.data, prefix))
        if not self._has_said:
            self._has_said = True
            log.warning(
                "relibra chooses the data-parallel ranks of sequences of job %s, within verl's mini-batches; the "
                "first batch: %s",
                job.settings.job,
                reason,
            )

    def _pack(
        self, job: TrainedJob, routed_S: list[NDArray[np.integer]], length_S: NDArray[np.int64], verls: Dealt
    ) -> tuple[Dealt, str]:
        name, settings = job.settings.job, job.settings
        if self._planner is None or self._reporter is None:
            if job.token:
                os.environ["RELIBRA_TOKEN"] = job.token
            self._planner = PlannerClient(settings.planner, attempt=job.attempt)
            self._reporter = RolloutReporter(
                settings.planner, name, num_experts=job.layers.num_experts, attempt=job.attempt
            )
        return pack_step(
            self._planner,
            self._reporter,
            name,
            job.next_step,
            f"batch-{uuid.uuid4().hex}",
            PackableStep(
                routed_S=routed_S,
                length_S=length_S.tolist(),
                dealt=verls,
                freedom=Freedom.RANKS,
                keeps_counts=True,
            ),
            job.layers,
            job.ranks,
            timeout_s=settings.plan_timeout_s,
        )


def ask_first_worker(group: Any) -> TrainedJob | None:
    """Ask the training process of rank 0 for its job; None if it has none.

    Args:
        group: verl's group of the actor's workers.

    Raises:
        Unavailable: the process does not answer in time, or has died.
    """
    import ray

    try:
        job: TrainedJob | None = ray.get(group.workers[0].__ray_call__.remote(trained_job), timeout=_ASK_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        raise Unavailable(f"the training process of rank 0 does not say which job it trains: {error}") from error
    return job


def check_replay(config: Any) -> None:
    """Raise if no routing is known when verl deals a batch.

    Raises:
        Unsupported: training replays the routing of its own pass, which has not run yet.
    """
    if (mode := config.actor_rollout_ref.actor.megatron.router_replay.mode) == "R2":
        raise Unsupported(
            f"router_replay.mode={mode} records routing in the pass over old log-probabilities, which runs after verl "
            "has dealt the batch; pack needs the routing of the rollout, R3"
        )


def mini_batch_sizes(trainer: Any, num_sequences: int) -> list[int]:
    """Return the sequences of a mini-batch, one number for each model that trains.

    Args:
        trainer: verl's trainer.
        num_sequences: the sequences of the batch.

    Raises:
        Unsupported: which sequences share a mini-batch does not follow from verl's order alone.
    """
    if getattr(trainer, "use_prefix_grouper", False):
        raise Unsupported("use_prefix_grouper needs the samples of a prompt on one rank, as verl has dealt them")
    config = trainer.config
    models = [("actor", config.actor_rollout_ref.actor), *([("critic", config.critic)] if trainer.use_critic else [])]
    sizes = []
    for name, model in models:
        size = model.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
        if model.shuffle and size != num_sequences:
            raise Unsupported(f"with shuffle of the {name}, each rank draws its part of every mini-batch by itself")
        sizes.append(int(size))
    return sizes


def _balance_of(length_S: NDArray[np.int64], num_ranks: int, prefix: str) -> dict[str, int]:
    """Return verl's metrics of the balance of lengths, as far as they depend on who gets which sequence."""
    tokens_D = length_S.reshape(num_ranks, -1).sum(axis=1)
    return {f"{prefix}/balanced_min": int(tokens_D.min()), f"{prefix}/balanced_max": int(tokens_D.max())}
