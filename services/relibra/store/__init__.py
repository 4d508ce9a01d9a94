"""All durable state, in Redis: registrations, reports, schedules, plans and executions.

In:   registrations, sequence counts, schedules, checked plans, execution reports; a Redis URL.
Out:  the same content read back, each written once and never changed; `Unavailable` when Redis does not answer.

    keys          the key schema, and the content of each key
    store         `Store`: all parts in one; nothing else talks to Redis
    jobs, attempts, rollbacks, sequences, schedules, leases, plans, steps, reports, stored_reports, expiry, summaries,
    notes, tokens    one part per concept
    single_flight a bounded cache that makes each value once
    lua/          the writes that must look before they write; each is atomic in Redis
    seal          the checksum of everything that is planned from, fetched or shown
    array_codec, plan_codec, documents, json_codec    the formats of values in Redis
    embedded      `EmbeddedRedis`: a real redis-server for one machine

The store decides nothing: the planner decides, the store keeps. Every write is idempotent, so a caller that got
`Unavailable` repeats it.
"""

from relibra.store.embedded import EmbeddedRedis
from relibra.store.expiry import RetainedStep
from relibra.store.keys import AttemptId
from relibra.store.records import (
    Attempt,
    EncodedPlan,
    JobRecord,
    Lease,
    PackingNote,
    PackingState,
    PendingStep,
    PlanRecord,
    Refusal,
    Refused,
    SequenceCounts,
    StepRecord,
    StepState,
    StoreLimits,
    TokenRecord,
)
from relibra.store.store import Store
from relibra.store.summaries import Expired, ExpiryCause, StepSummary
from relibra.store.tokens import ALL_JOBS, Role, covers

__all__ = [
    "ALL_JOBS",
    "Attempt",
    "AttemptId",
    "EmbeddedRedis",
    "EncodedPlan",
    "Expired",
    "ExpiryCause",
    "JobRecord",
    "Lease",
    "PackingNote",
    "PackingState",
    "PendingStep",
    "PlanRecord",
    "Refusal",
    "Refused",
    "RetainedStep",
    "Role",
    "SequenceCounts",
    "StepRecord",
    "StepState",
    "StepSummary",
    "Store",
    "StoreLimits",
    "TokenRecord",
    "covers",
]
