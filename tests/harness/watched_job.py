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
from relibra.planning.launch import Launch
from relibra.planning.load import narrow_counts
from relibra.planning.solve import solve
from relibra.store import EncodedPlan, ExpiryCause, JobRecord, SequenceCounts, Store

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
    ) -> None:
        self.store, self.job_id, self.model, self.cluster = store, job_id, model, cluster
        self._num_micro_batches = num_micro_batches
        self._tokens_per_sequence = tokens_per_sequence
        self._phase_s = phase_s
        self._registered_params = PlanParams(cost=cost)
        self._home_LE = cluster.identity_placement(model)
        self.schedule = Schedule.round_robin(num_micro_batches * cluster.num_ranks, num_micro_batches, cluster)
        self.ids = [f"sequence-{index}" for index in range(self.schedule.num_sequences)]
        self.plans: dict[int, Plan] = {}
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
        self._home_LE = plan.home_rank_LE
        self.plans[step] = plan
        return await self.store.publish_plan(lease, EncodedPlan.of(plan))

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
        """Let ranks report that they executed a plan as it is, or that they fell back if `plan_id` is None."""
        reason = reason or ("all ranks hold it" if plan_id else "rank 3 without a plan in time")
        plan = self.plans[step]
        loads_MLR = plan.rank_loads_MLR
        per_group = plan.num_rows // self.cluster.num_ep_groups
        for group in range(self.cluster.num_ep_groups):
            for rank in range(self.cluster.num_ranks) if ranks is None else ranks:
                rows = slice(group * per_group, (group + 1) * per_group)
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
                        realised_load_ML=loads_MLR[rows, :, rank],
                        reorder_sent_bytes=1 << 20,
                        replica_sent_bytes=1 << 18,
                        plan_wait_s=0.01 * (1 + step % 5) + 0.001 * rank,
                        reorder_s=0.2,
                        replica_wait_s=0.001 * rank,
                        duration_s=self._phase_s + 0.25 * rank,
                        num_processes=1,
                    ),
                )

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
