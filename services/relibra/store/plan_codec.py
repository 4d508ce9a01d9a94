"""A plan as the fields of a Redis hash. Each array has its own field, so that what ranks fetch is read alone.

| field | content |
|---|---|
| `meta` | JSON: model, cluster, params, prediction, reason, repacked |
| `home_rank` | `[L, E]` |
| `replica_count`, `replica_expert`, `replica_rank` | replicas of every cell `[M, L]`; expert and rank of each `[Y]` |
| `schedule` | `[3, S]`: micro-batch, source rank, EP group |
| `load`, `replica_tokens` | what the plan expects: token copies `[M, L, E]`, and those of each replica `[Y]` |
| `lower_bound` | `[M, L]` |

M rows, L layers, E experts, S sequences, Y replicas.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.planning import Cluster, Model, Plan, PlanParams, Replicas, Schedule
from relibra.planning.plan import Prediction
from relibra.store.array_codec import PackedArray
from relibra.store.seal import seal, unseal

COMMON_FIELDS = ("home_rank", "replica_count", "replica_expert", "replica_rank")
PLAN_FIELDS = ("meta", *COMMON_FIELDS, "schedule", "load", "replica_tokens", "lower_bound")


def encode_plan(plan: Plan) -> dict[str, bytes]:
    """Encode a plan."""
    schedule, replicas = plan.schedule, Replicas.of(plan.replica_index_Y4, plan.num_rows, plan.model.num_layers)
    arrays: dict[str, NDArray[np.generic]] = {
        "home_rank": plan.home_rank_LE,
        "replica_count": replicas.count_ML,
        "replica_expert": replicas.expert_Y,
        "replica_rank": replicas.rank_Y,
        "schedule": np.stack([schedule.micro_batch_S, schedule.source_rank_S, schedule.ep_group_S]),
        "load": plan.load_MLE,
        "replica_tokens": plan.replica_tokens_Y,
        "lower_bound": plan.lower_bound_ML,
    }
    return {"meta": seal(plan.meta)} | {name: PackedArray.of(array).to_bytes() for name, array in arrays.items()}


def decode_plan(fields: Mapping[str, bytes], what: str) -> Plan:
    """Decode a plan.

    Args:
        fields: those of `PLAN_FIELDS`, or more.
        what: the name of the plan, for errors.

    Raises:
        Corrupt: a field is not the one that was stored.
    """
    meta = json.loads(unseal(fields["meta"], f"field 'meta' of {what}"))

    def unpack(name: str) -> NDArray[Any]:
        return PackedArray.from_bytes(fields[name], f"field {name!r} of {what}").unpack()

    micro_batch_S, source_rank_S, ep_group_S = unpack("schedule").astype(np.int32)
    replicas = Replicas(
        count_ML=unpack("replica_count"), expert_Y=unpack("replica_expert"), rank_Y=unpack("replica_rank")
    )
    return Plan(
        model=Model(**meta["model"]),
        cluster=Cluster(**meta["cluster"]),
        params=PlanParams(**meta["params"]),
        schedule=Schedule(micro_batch_S=micro_batch_S, source_rank_S=source_rank_S, ep_group_S=ep_group_S),
        home_rank_LE=unpack("home_rank").astype(np.int32),
        replica_index_Y4=replicas.index_Y4,
        load_MLE=unpack("load").astype(np.int64),
        replica_tokens_Y=unpack("replica_tokens").astype(np.int64),
        lower_bound_ML=unpack("lower_bound").astype(np.float64),
        prediction=Prediction(**meta["prediction"]),
        reason=meta["reason"],
        repacked=meta["repacked"],
    )
