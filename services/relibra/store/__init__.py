"""All durable state, in Redis: what was registered, reported, scheduled, planned and executed.

In:   registrations, sequence counts, schedules, checked plans, execution reports; a Redis URL.
Out:  the same things read back, each written once and never changed; `Unavailable` when Redis does not answer.

    keys          the key schema, and what each key holds
    store         `Store`: all parts in one; the only one that talks to Redis
    jobs, sequences, schedules, leases, plans, steps, reports, tokens    one part a concept
    lua/          the writes that must look before they write, atomic in Redis
    array_codec, plan_codec, documents    how things lie in Redis
    embedded      `EmbeddedRedis`: a real redis-server for one machine

Nothing here decides: the planner decides, the store keeps. Every write is idempotent, so a caller that got
`Unavailable` repeats it.
"""

from relibra.store.embedded import EmbeddedRedis
from relibra.store.records import (
    EncodedPlan,
    JobRecord,
    Lease,
    PackedPlan,
    PendingStep,
    PlanRecord,
    SequenceCounts,
    StepRecord,
    StepState,
    StoreLimits,
    TokenRecord,
)
from relibra.store.store import Store
from relibra.store.tokens import ALL_JOBS, Role

__all__ = [
    "ALL_JOBS",
    "EmbeddedRedis",
    "EncodedPlan",
    "JobRecord",
    "Lease",
    "PackedPlan",
    "PendingStep",
    "PlanRecord",
    "Role",
    "SequenceCounts",
    "StepRecord",
    "StepState",
    "Store",
    "StoreLimits",
    "TokenRecord",
]
