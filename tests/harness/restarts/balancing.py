"""One rank's part in planning: rank 0 drives the job, and every rank reports its rollouts and runs an agent."""

import time

import numpy as np
import torch.distributed as dist
from megatron.core import parallel_state

from harness.distributed.gpt_batches import routing
from harness.distributed.gpt_job import GptJob
from harness.restarts.dying import Death
from harness.restarts.run import NUM_MICRO_BATCHES, Notes, Run
from relibra.agent import Agent, AgentConfig, Phase, attach, shared_attempt
from relibra.planning import Cluster, PlanParams, Schedule
from relibra.rollout import RolloutReporter
from relibra.wire.client import PlannerClient

PLAN_TIMEOUT_S = 60.0
"""Long, because other work on the machine must not look like a planner that is away."""


class Balancing:
    """The agent of one rank, and its reporter; on rank 0 also the driver."""

    def __init__(self, run: Run, cluster: Cluster, job: GptJob, notes: Notes) -> None:
        self._run, self._cluster, self._job, self._notes = run, cluster, job, notes
        attempt = shared_attempt()
        self._client = PlannerClient(run.planner_address, timeout_s=PLAN_TIMEOUT_S, attempt=attempt)
        self._reporter = RolloutReporter(
            run.planner_address, run.job_id, num_experts=job.model.num_experts, attempt=attempt
        )
        if dist.get_rank() == 0:
            began = time.monotonic()
            epoch = self._client.register_job(run.job_id, job.model, cluster, PlanParams())
            notes.note("registered", epoch=epoch, wait_s=time.monotonic() - began)
        dist.barrier()
        config = AgentConfig(
            planner_address=run.planner_address,
            job_id=run.job_id,
            model=job.model,
            cluster=cluster,
            plan_timeout_s=PLAN_TIMEOUT_S,
            guard=False,
        )
        self._agent: Agent = attach(job.chunks, job.optimizer, config)
        job.agent = self._agent

    def open(self, step: int, sample: int, death: Death) -> None:
        """Report the rollouts of the step, submit its schedule, and begin it."""
        data_rank = parallel_state.get_data_parallel_rank()
        for micro_batch in range(NUM_MICRO_BATCHES):
            routed_TLK = routing(self._job.model, sample, micro_batch).transpose(0, 1).numpy()
            assert self._reporter.report(step, _sequence(micro_batch, data_rank), routed_TLK)
        self._reporter.flush(timeout_s=PLAN_TIMEOUT_S)
        dist.barrier()
        death.at(step, "reported")
        if dist.get_rank() == 0:
            micro_batch_S, rank_S = np.divmod(
                np.arange(NUM_MICRO_BATCHES * dist.get_world_size(), dtype=np.int32), np.int32(dist.get_world_size())
            )
            schedule = Schedule(
                micro_batch_S=micro_batch_S,
                source_rank_S=rank_S % np.int32(self._cluster.num_ranks),
                ep_group_S=rank_S // np.int32(self._cluster.num_ranks),
            )
            ids = [_sequence(*each) for each in zip(micro_batch_S.tolist(), rank_S.tolist(), strict=True)]
            self._client.submit_schedule(self._run.job_id, step, ids, schedule)
        death.at(step, "scheduled")
        outcome = self._agent.begin_step(step, Phase.UPDATE)
        self._notes.note(
            "began",
            step=step,
            applied=str(outcome.applied) if outcome.applied else None,
            causes=[str(cause) for cause in outcome.causes],
            reason=outcome.reason,
            moved_experts=outcome.num_moved_experts,
            replicas=outcome.num_replicas,
            plan_wait_s=outcome.plan_wait_s,
        )

    def go_back(self, step: int) -> None:
        """Plan `step` and the steps after it anew; the model has already its weights of before."""
        epoch = [self._client.rollback(self._run.job_id, step) if dist.get_rank() == 0 else 0]
        dist.broadcast_object_list(epoch)
        self._reporter.follow(epoch[0])
        self._agent.rollback(step)

    def close(self) -> None:
        """End the step."""
        self._agent.end_step()

    def finish(self) -> None:
        """Detach the agent, which delivers its reports."""
        self._agent.detach()
        self._reporter.close()
        self._client.close()


def _sequence(micro_batch: int, data_rank: int) -> str:
    """Return the id of the sequence of a rank in a micro-batch: the same in every generation and step."""
    return f"sequence of rank {data_rank} in micro-batch {micro_batch}"
