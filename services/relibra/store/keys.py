"""The key schema: every key that relibra writes, with its content, its size and its lifetime.

Keys of all jobs have the prefix `relibra:`. They stay for good, except `loss` and revoked tokens:

| key | type | content | size |
|---|---|---|---|
| `schema` | string | version of this schema | 1 B |
| `looks` | string | how often planners looked for what Redis lost: it only rises | 8 B |
| `loss` | string | JSON: what Redis lost last, and when; it expires after a day | 100 B |
| `jobs` | set | ids of registered jobs | 64 B a job |
| `tokens` | hash | token id -> JSON: hash of its secret, job, role, times | 300 B a token |

Keys of one job have the prefix `relibra:{job}:`. They stay until the job is removed, with two exceptions: `epoch` and
`fence` stay for good, so that both only rise, and `lease` stays as long as it is renewed:

| key | type | content | size |
|---|---|---|---|
| `job` | hash | current attempt: `epoch` (16 hex), `shape`, `token`, `process`, ...; `swept_at` | 2 KiB |
| `attempts` | hash | epoch -> JSON: number, owner, beginning, shape; once over, `heard_at` | 1 KiB an attempt |
| `epoch` | string | the last epoch given out, decimal | 16 B |
| `fence` | string | the last fencing token given out | 16 B |
| `lease` | string | fencing token of the planner that solves now | 16 B |
| `ahead` | hash | sequence id -> policy versions, `|`, counts: of sequences of no step yet | `max_step_size_bytes` |
| `ahead_order` | sorted set | the same ids, oldest first | 100 B a sequence |
| `ahead_note` | hash | of `ahead`: `epoch` of its attempt, `size` in bytes, `number` of the newest | 60 B |

Keys of one attempt have the prefix `relibra:{job}:<epoch, 16 hex digits>:`. Once a newer attempt began, only the expiry
of steps writes to them. They stay until the job is removed or `KNOWN_ATTEMPTS` newer attempts began:

| key | type | content | size |
|---|---|---|---|
| `steps` | sorted set | every step that has data, by step | 20 B a step |
| `open` | sorted set | steps with sequences and no plan yet, by step | 20 B a step |
| `pending` | sorted set | steps that wait for their plan, by the Unix time since when | 20 B a step |
| `plans` | sorted set | planned steps, by version | 20 B a step |
| `sizes` | hash | step -> bytes of its counts, its schedule and its reports, by `field_bytes` | 20 B a step |
| `crashes` | hash | step -> how often planning it crashed | 20 B a step |
| `version` | string | version of the newest plan | 8 B |
| `floor` | string | steps below it have expired | 8 B |
| `foreseen` | string | the newest step that was planned from history, or waits for that | 8 B |
| `placement` | string | home ranks `[L, E]` that the ranks had when the attempt began by going back, packed | 4 KiB |
| `begun` | sorted set | steps by the Unix time (Redis clock) at which a planner first saw data of them | 100 B a step |
| `summaries` | sorted set | expired steps by step: a `StepSummary`, deflated; at most `MAX_SUMMARIES` | 750 B each |
| `refusals` | hash | what was refused since a schedule was last accepted -> JSON: the newest refusal | 2 KiB |
| `packing` | string | JSON of a `PackingNote`: how far the newest packing has come | 700 B |

Keys of one step have the prefix `relibra:{job}:<epoch>:step:<step>:`. They stay as long as the step:

| key | type | content | size |
|---|---|---|---|
| `counts` | hash | sequence id -> counts `[L, E]`, see `sequences` | with `reports`: `max_step_size_bytes` |
| `policies` | hash | `<first>-<last>` policy version -> number of sequences | 30 B a pair |
| `schedule` | hash | `level`; `document`, JSON: ids, `micro_batch`, `source_rank`, `ep_group` | 60 B a sequence |
| `plan` | hash | fields of `plan_codec`; `epoch`, `version`, `digest`, `bytes`, times | 2 KiB a cell |
| `failure` | string | why the step cannot be planned | 1 KiB |
| `reports` | hash | `<phase>/<ep group>/<ep rank>` -> JSON of an execution report | 500 B a rank and phase |
| `executed` | hash | phase that all ranks have reported -> JSON: the sum of its reports | 1 KiB a phase at 64 ranks |
| `reported` | hash | phase -> number of its reports; `bytes`: what `reports`, `realised` and `routed` take | 100 B |
| `routed` | hash | the same fields as `reports` -> load by expert `[N, L, E]`, packed | 4 KiB a rank and phase |
| `realised` | hash | the same fields as `reports` -> realised load, int64 `[M, L]` little endian | 8 B a cell, rank |

Counts, schedules, the fields of plans, reports and their loads and sums have a checksum (`seal`), and all sizes above
leave out what Redis takes for names and tables.

When a step expires, `expire_steps` removes its keys and leaves a summary, in one script. The planner decides which
steps expire (`planner/loop/retention.py`): the oldest, by number, bytes and age, but none that is under way; and all
steps of an attempt once `RETAINED_ATTEMPTS` newer ones began. So the memory of a job is bounded, and Redis needs no
eviction. The braces are Redis hash tags: all keys of a job live in one slot, so scripts work on a Redis Cluster, and no
script touches two jobs.
"""

from dataclasses import dataclass
from typing import Protocol

SCHEMA = "relibra:schema"
SCHEMA_VERSION = 16
LOOKS = "relibra:looks"
LOSS = "relibra:loss"
JOBS = "relibra:jobs"
TOKENS = "relibra:tokens"

RETAINED_ATTEMPTS = 4
"""How many attempts of a job keep the full data of steps, the current one included."""
KNOWN_ATTEMPTS = 32
"""How many attempts of a job keep the summaries of their steps, the current one included."""
MAX_STEP = 1 << 53
"""Redis keeps scores as doubles, which count exactly up to here."""
MAX_SUMMARIES = 100_000
"""How many steps of an attempt keep a summary after their full data has expired; the newest stay."""
AHEAD_KEYS = {"ahead": "hash", "ahead_order": "zset", "ahead_note": "hash"}
"""The keys of a job with the sequences of no step yet, and the type of each in Redis."""
JOB_KEYS = (
    dict.fromkeys(("job", "attempts"), "hash") | dict.fromkeys(("epoch", "fence", "lease"), "string") | AHEAD_KEYS
)
ATTEMPT_KEYS = (
    dict.fromkeys(("steps", "open", "summaries", "pending", "plans", "begun"), "zset")
    | dict.fromkeys(("sizes", "crashes", "refusals"), "hash")
    | dict.fromkeys(("version", "floor", "foreseen", "placement", "packing"), "string")
)
STEP_KEYS = {"failure": "string"} | dict.fromkeys(
    ("counts", "policies", "schedule", "plan", "reports", "reported", "realised", "routed", "executed"), "hash"
)
_KEYS = dict.fromkeys(("schema", "looks", "loss"), "string") | {"jobs": "set", "tokens": "hash"}
_TYPES = _KEYS | JOB_KEYS | ATTEMPT_KEYS | STEP_KEYS


def type_of(key: str) -> str:
    """Return the type that Redis has for a key; no two levels have a name in common."""
    return _TYPES[key.rpartition(":")[2]]


class AttemptId(Protocol):
    """Anything that belongs to one attempt of a job, such as a `JobRecord`, an `Attempt` or a `Lease`."""

    @property
    def job_id(self) -> str:
        """The job."""

    @property
    def epoch(self) -> int:
        """The epoch that the attempt was given when it began."""


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The keys of one job."""

    job_id: str

    def of(self, name: str) -> str:
        """Return a key of the job, for example `lease`."""
        return f"relibra:{{{self.job_id}}}:{name}"

    def attempt(self, epoch: int) -> "AttemptKeys":
        """Return the keys of the attempt that has `epoch`."""
        return AttemptKeys(job=self, epoch=epoch)


@dataclass(frozen=True, slots=True)
class AttemptKeys:
    """The keys of one attempt of a job."""

    job: JobKeys
    epoch: int

    @property
    def job_id(self) -> str:
        """The job, so that the keys of an attempt name the attempt."""
        return self.job.job_id

    @classmethod
    def of_attempt(cls, attempt: AttemptId) -> "AttemptKeys":
        """Return the keys of an attempt."""
        return JobKeys(attempt.job_id).attempt(attempt.epoch)

    def of(self, name: str) -> str:
        """Return one of the attempt's `ATTEMPT_KEYS`, for example `pending`."""
        return self.job.of(f"{self.epoch:016x}:{name}")

    def step(self, step: int, name: str) -> str:
        """Return one of a step's `STEP_KEYS`."""
        return self.of(f"step:{step}:{name}")
