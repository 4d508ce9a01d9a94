"""A job for tests of what people look at: really planned, reported by its ranks, and written straight into a store."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from relibra.planning import (
    Cause,
    Cluster,
    ExecutionReport,
    Model,
    Phase,
    Plan,
    PlanId,
    PlanParams,
    Schedule,
    StepLoad,
)
from relibra.planning.cost import CostModel
from relibra.planning.execution import sample_micro_batches
from relibra.planning.expected.loads import WINDOW, mean_micro_batch, seen_load
from relibra.planning.launch import Launch
from relibra.planning.load import narrow_counts
from relibra.planning.memory import NOT_KNOWN, ActivationMemory
from relibra.planning.plan import Level, Quotas
from relibra.planning.solve import solve
from relibra.planning.split import split_step
from relibra.store import EncodedPlan, ExpiryCause, JobRecord, Lease, SequenceCounts, Store

LEASE_S = 600.0


class WatchedJob:
    """A job whose steps the caller advances, one call per stage."""

    def __init__(
        self,
        store: Store,
        job_id: str,
        *,
        model: Model,
        cluster: Cluster,
        num_micro_batches: int = 4,
        tokens_per_sequence: int = 256,
        phase_s: float = 2.0,
        cost: CostModel | None = None,
        memory: ActivationMemory = NOT_KNOWN,
    ) -> None:
        self.store, self.job_id, self.model, self.cluster = store, job_id, model, cluster
        self._num_micro_batches = num_micro_batches
        self._tokens_per_sequence = tokens_per_sequence
        self._phase_s = phase_s
        self._registered_params = PlanParams(cost=cost, memory=memory)
        self._home_LE = cluster.identity_placement(model)
        self.schedule = Schedule.round_robin(num_micro_batches * cluster.num_ranks, num_micro_batches, cluster)
        self.ids = [f"sequence-{index}" for index in range(self.schedule.num_sequences)]
        self.plans: dict[int, Plan] = {}
        self._published: dict[PlanId, Plan] = {}
        self.record: JobRecord

    async def register(self, launch: Launch = Launch()) -> JobRecord:  # noqa: B008
        self.record = await self.store.register_job(
            self.job_id, self.model, self.cluster, self._registered_params, launch=launch
        )
        return self.record

    async def restart(self, launch: Launch) -> JobRecord:
        """Begin the next attempt; what is planned and reported from now on belongs to it."""
        self._home_LE, self.plans = self.cluster.identity_placement(self.model), {}
        return await self.register(launch)

    async def collect(self, step: int) -> NDArray[np.uint32]:
        """Report the sequences of a step; return their counts."""
        counts_SLE = self._counts(step)
        await self.store.put_counts(
            [
                SequenceCounts(
                    job_id=self.job_id,
                    epoch=self.record.epoch,
                    step=step,
                    sequence_id=name,
                    counts_LE=narrow_counts(counts_LE),
                )
                for name, counts_LE in zip(self.ids, counts_SLE, strict=True)
            ]
        )
        return counts_SLE

    async def plan(self, step: int) -> PlanId:
        """Take a step from its sequences to its plan."""
        counts_SLE = await self.collect(step)
        await self.store.put_schedule(self.record, step, self.ids, self.schedule)
        lease = await self.store.take_lease(self.job_id, LEASE_S)
        assert lease is not None
        load = StepLoad.of(counts_SLE, self.schedule, self.cluster)
        plan = solve(load, self.schedule, self.model, self.cluster, PlanParams(), self._home_LE)
        return await self._publish(lease, plan)

    async def foresee(self, step: int) -> PlanId:
        """Plan a step from history, as the planner does when all ranks have reported the step before."""
        lease = await self.store.take_lease(self.job_id, LEASE_S)
        assert lease is not None
        assert lease.step == step
        seen_NLE = await self.store.micro_batches_before(self.record, step, WINDOW)
        load, schedule = mean_micro_batch(seen_NLE, self.cluster)
        seen = seen_load(seen_NLE, self.cluster)
        params = PlanParams(memory=self._registered_params.memory)
        plan = solve(load, schedule, self.model, self.cluster, params, self._home_LE, level=Level.HISTORY, seen=seen)
        return await self._publish(lease, plan)

    async def _publish(self, lease: Lease, plan: Plan) -> PlanId:
        self._home_LE = plan.home_rank_LE
        plan_id = await self.store.publish_plan(lease, EncodedPlan.of(plan))
        self.plans[lease.step] = self._published[plan_id] = plan
        return plan_id

    async def fail(self, step: int, reason: str) -> None:
        """Take a step from its sequences to a failed solve."""
        await self.collect(step)
        await self.store.put_schedule(self.record, step, self.ids, self.schedule)
        lease = await self.store.take_lease(self.job_id, LEASE_S)
        assert lease is not None
        await self.store.end_solve(lease, reason)

    async def report(
        self,
        step: int,
        plan_id: PlanId | None,
        *,
        phase: Phase = Phase.UPDATE,
        ranks: Sequence[int] | None = None,
        causes: tuple[Cause, ...] = (Cause.LATE,),
        reason: str = "",
    ) -> None:
        """Let ranks report that they executed a plan, or that they fell back if `plan_id` is None."""
        reason = reason or ("all ranks hold it" if plan_id else "rank 3 without a plan in time")
        plan = self.plans.get(step) if plan_id is None else self._published[plan_id]
        tokens_MLER = self._executed(step, plan)
        per_group = len(tokens_MLER) // self.cluster.num_ep_groups
        for group in range(self.cluster.num_ep_groups):
            for rank in range(self.cluster.num_ranks) if ranks is None else ranks:
                of_rank_MLE = tokens_MLER[group * per_group : (group + 1) * per_group, ..., rank]
                await self.store.put_report(
                    self.record,
                    ExecutionReport(
                        step=step,
                        phase=phase,
                        ep_group=group,
                        ep_rank=rank,
                        applied=plan_id,
                        reason=reason,
                        causes=() if plan_id else causes,
                        realised_load_ML=of_rank_MLE.sum(axis=-1),
                        expert_load_NLE=narrow_counts(of_rank_MLE[sample_micro_batches(per_group)].astype(np.uint32)),
                        reorder_sent_bytes=1 << 20,
                        replica_sent_bytes=1 << 18,
                        plan_wait_s=0.01 * (1 + step % 5) + 0.001 * rank,
                        reorder_s=0.2,
                        replica_wait_s=0.001 * rank,
                        duration_s=self._phase_s + 0.25 * rank,
                        num_processes=1,
                    ),
                )

    async def report_loads(self, step: int, load_ML: NDArray[np.int64], *, phase: Phase = Phase.UPDATE) -> None:
        """Let all ranks of the first EP group report the same loads, whatever was planned."""
        for rank in range(self.cluster.num_ranks):
            report = ExecutionReport(
                step=step,
                phase=phase,
                ep_group=0,
                ep_rank=rank,
                applied=None,
                reason="no plan in time",
                realised_load_ML=load_ML,
                reorder_sent_bytes=0,
                replica_sent_bytes=0,
                plan_wait_s=0.0,
            )
            await self.store.put_report(self.record, report)

    def _executed(self, step: int, plan: Plan | None) -> NDArray[np.int64]:
        """Return the tokens of every expert by rank, `[M, L, E, R]`, as ranks with this plan split those of a step."""
        load_MLE = StepLoad.of(self._counts(step), self.schedule, self.cluster).load_MLE
        home_LE, index_Y4 = self.cluster.identity_placement(self.model), np.zeros((0, 4), dtype=np.int32)
        if plan is not None:
            home_LE, num_rows = plan.home_rank_LE, plan.num_rows
            # Micro-batches beyond those of a plan use its replicas in turn.
            per_group, planned = (num // self.cluster.num_ep_groups for num in (len(load_MLE), num_rows))
            of_row = [
                plan.replica_index_Y4[plan.replica_index_Y4[:, 0] == group * planned + number % planned]
                for group, number in np.ndindex(self.cluster.num_ep_groups, per_group)
            ]
            index_Y4 = np.concatenate(of_row)
            index_Y4[:, 0] = np.repeat(np.arange(len(load_MLE)), [len(each) for each in of_row])
        gpus_per_node, num_ranks = self.cluster.gpus_per_node, self.cluster.num_ranks
        tokens_Y, _ = split_step(load_MLE, np.zeros_like(load_MLE), home_LE, index_Y4, gpus_per_node, num_ranks)
        quotas = Quotas.of(load_MLE, home_LE, index_Y4, tokens_Y)
        tokens_MLER = np.zeros((*load_MLE.shape, num_ranks), dtype=np.int64)
        tokens_MLER[tuple(quotas.index_Q4.T)] = quotas.tokens_Q
        return tokens_MLER

    async def expire(self, *steps: int, cause: ExpiryCause = ExpiryCause.STEPS) -> None:
        """Let steps expire: their summaries stay."""
        measured, _ = await self.store.measure_steps(self.record)
        chosen = {each: cause for each in measured if each.step in steps}
        assert await self.store.expire_steps(self.record, chosen, time.time()) == sorted(steps)

    def _counts(self, step: int) -> NDArray[np.uint32]:
        """Return skewed counts `[S, L, E]` that drift slowly: an expert stays hot for a few steps."""
        rng = np.random.default_rng(step)
        drift = np.random.default_rng(step // 4)
        weight_LE = np.exp(drift.normal(0, 0.9, (self.model.num_layers, self.model.num_experts)))
        counts = []
        for _ in self.ids:
            noisy_LE = weight_LE * np.exp(rng.normal(0, 0.6, weight_LE.shape))
            share_LE = noisy_LE / noisy_LE.sum(axis=1, keepdims=True)
            counts.append(rng.multinomial(self._tokens_per_sequence * self.model.top_k, share_LE))
        return np.stack(counts).astype(np.uint32)
