"""All durable state, in Redis: what was registered, reported, scheduled, planned and executed.

In:   registrations, sequence counts, schedules, checked plans, execution reports; a Redis URL.
Out:  the same things read back, each written once and never changed; `Unavailable` when Redis does not answer.

    keys          the key schema, and what each key holds
    store         `Store`: one method a question; the only one that talks to Redis
    publish_plan.lua, put_schedule.lua   the two writes that must look before they write
    embedded      `EmbeddedRedis`: a real redis-server for one machine

Nothing here decides: the planner decides, the store keeps. Every write is idempotent, so a caller that got
`Unavailable` repeats it.
"""

from relibra.store.embedded import EmbeddedRedis
from relibra.store.records import EncodedPlan, JobRecord, PendingStep, PlanRecord, SequenceCounts, StepRecord, StepState
from relibra.store.store import Store

__all__ = [
    "EmbeddedRedis",
    "EncodedPlan",
    "JobRecord",
    "PendingStep",
    "PlanRecord",
    "SequenceCounts",
    "StepRecord",
    "StepState",
    "Store",
]
