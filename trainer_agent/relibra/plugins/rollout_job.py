"""How the rollout processes of a job find the job that its trainer registered: through the store of keys that Ray has.

Frameworks start rollout and training as actors of one Ray job, and hand nothing from one to the other.
"""

import os
import pickle
from dataclasses import dataclass, field
from typing import Any

from relibra.rollout import RolloutReporter
from relibra.routing import ModelLayers
from relibra.wire.client import PlannerClient
from relibra.wire.credentials import Credentials

_NAMESPACE = b"relibra"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutJob:
    """A job as its training processes have registered it."""

    planner: str
    """The planner as `host:port`, also one that the job has started for itself."""
    job: str
    attempt: str
    layers: ModelLayers
    credentials: Credentials = field(default_factory=lambda: Credentials.from_env(os.environ), repr=False)
    """What callers of the planner show; by default what the environment of this process says."""

    def clients(self, timeout_s: float) -> tuple[PlannerClient, RolloutReporter]:
        """Return clients that act in the attempt of the job.

        Args:
            timeout_s: how long a call to the planner may take.
        """
        caller: Any = {"credentials": self.credentials, "attempt": self.attempt}
        planner = PlannerClient(self.planner, timeout_s=timeout_s, **caller)
        return planner, RolloutReporter(self.planner, self.job, num_experts=self.layers.num_experts, **caller)


def publish(job: RolloutJob) -> None:
    """Let all processes of this Ray job find a job, in place of the one before. Without Ray, nobody looks for it."""
    if (key := _key()) is not None:
        _ray_keys()._internal_kv_put(key, pickle.dumps(job), overwrite=True, namespace=_NAMESPACE)


def find_rollout_job() -> RolloutJob | None:
    """Return the job that a training process of this Ray job published last; None without Ray, and before that."""
    key = _key()
    value = None if key is None else _ray_keys()._internal_kv_get(key, namespace=_NAMESPACE)
    return None if value is None else pickle.loads(value)


def _key() -> bytes | None:
    try:
        import ray
    except ImportError:
        return None
    return ray.get_runtime_context().get_job_id().encode() if ray.is_initialized() else None


def _ray_keys() -> Any:
    from ray.experimental import internal_kv

    return internal_kv
