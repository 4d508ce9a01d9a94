"""The key schema: every key relibra writes, and what is in it.

| key | type | content |
|---|---|---|
| `relibra:jobs` | set | ids of registered jobs |
| `relibra:{job}:job` | string | JSON: `epoch` (16 hex digits), `registered_at`, `model`, `cluster`, `params` |
| `relibra:{job}:steps` | sorted set | every step something is known of, by step |
| `relibra:{job}:pending` | sorted set | steps with a schedule but no plan or failure, by Unix time of the schedule |
| `relibra:{job}:version` | string | version of the newest plan |
| `relibra:{job}:plans` | sorted set | planned steps, by version |
| `relibra:{job}:step:<step>:counts` | hash | sequence id -> counts `[L, E]`, see `count_codec` |
| `relibra:{job}:step:<step>:schedule` | string | JSON: `sequence_ids`, `micro_batch`, `source_rank`, `ep_group` |
| `relibra:{job}:step:<step>:plan` | hash | `epoch`, `version`, `digest`, `reason`, `forecast`, `published_at`, `file` |
| `relibra:{job}:step:<step>:failure` | string | why the step cannot be planned |
| `relibra:{job}:step:<step>:reports` | hash | `<phase>/<ep group>/<ep rank>` -> JSON of an execution report |
| `relibra:{job}:step:<step>:realised` | hash | the same fields -> realised load, int64 `[M, L]` little endian |

In a plan, `forecast` is JSON and `file` the plan file (`.npz`). The braces are Redis hash tags: all keys of a job live
in one slot, so scripts and transactions work on a Redis Cluster.
"""

from dataclasses import dataclass

JOBS = "relibra:jobs"


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The keys of one job."""

    job_id: str

    def _key(self, name: str) -> str:
        return f"relibra:{{{self.job_id}}}:{name}"

    @property
    def registration(self) -> str:  # noqa: D102
        return self._key("job")

    @property
    def steps(self) -> str:  # noqa: D102
        return self._key("steps")

    @property
    def pending(self) -> str:  # noqa: D102
        return self._key("pending")

    @property
    def version(self) -> str:  # noqa: D102
        return self._key("version")

    @property
    def plans(self) -> str:  # noqa: D102
        return self._key("plans")

    def step(self, step: int, name: str) -> str:
        """Return the key of one of `counts`, `schedule`, `plan`, `failure`, `reports`, `realised`."""
        return self._key(f"step:{step}:{name}")
