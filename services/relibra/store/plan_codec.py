"""A plan as the fields of a Redis hash. Each array has its own field, so that one rank's part is read alone.

| field | content |
|---|---|
| `meta` | JSON: model, cluster, params, prediction, reason, repacked |
| `home_rank` | `[L, E]` |
| `replica_count`, `replica_expert`, `replica_rank` | replicas of every cell `[M, L]`; expert and rank of each `[Y]` |
| `share/<rank>` | `[Y]`, the tokens that every replica gets from that rank, see `SourceShares` |
| `source/<rank>` | `[M, L, B]`, the token copies expected from that rank, see `planning.source_load`; optional |
| `schedule` | `[3, S]`: micro-batch, source rank, EP group |
| `quota_count`, `quota_expert`, `quota_rank`, `quota_tokens` | quotas of every cell `[M, L]`, and each `[Q]` |
| `lower_bound` | `[M, L]` |
| `total/load`, `total/replicas` | `[L, E]`, summed over rows, see `PlanTotals` |
| `total/before`, `total/after` | `[L, R]`, summed over rows |

M rows, L layers, E experts, R EP ranks, S sequences, Q quotas, Y replicas, B buckets of experts.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.planning import Cluster, Model, Plan, PlanParams, Schedule, SourceShares, StepLoad
from relibra.planning.plan import Basis, Prediction
from relibra.planning.source_load import source_load
from relibra.planning.summary import PlanTotals
from relibra.store.array_codec import PackedArray
from relibra.store.seal import seal, unseal

COMMON_FIELDS = ("home_rank", "replica_count", "replica_expert", "replica_rank")
QUOTA_FIELDS = (
    "meta",
    "schedule",
    "home_rank",
    "lower_bound",
    "quota_count",
    "quota_expert",
    "quota_rank",
    "quota_tokens",
)
TOTALS_FIELDS = ("home_rank", "total/load", "total/replicas", "total/before", "total/after")
_SHARE_BLOCK = 1 << 13
"""How many replicas have their shares widened at a time."""


def share_field(rank: int) -> str:
    """Return the name of the field with one rank's shares."""
    return f"share/{rank}"


def source_field(rank: int) -> str:
    """Return the name of the field with the load that is expected from one rank."""
    return f"source/{rank}"


def encode_plan(plan: Plan, load: StepLoad | None = None) -> dict[str, bytes]:
    """Encode a plan, and the load that it was made for, which ranks compare with what their routers do."""
    shape = (plan.num_rows, plan.model.num_layers)
    schedule = plan.schedule
    replica_index_Y4 = plan.quota_index_Q4[plan.is_replica_Q]
    totals = PlanTotals.of(plan)
    arrays: dict[str, NDArray[np.generic]] = {
        "home_rank": plan.home_rank_LE,
        "replica_count": _count_cells(replica_index_Y4, shape),
        "replica_expert": replica_index_Y4[:, 2],
        "replica_rank": replica_index_Y4[:, 3],
        "schedule": np.stack([schedule.micro_batch_S, schedule.source_rank_S, schedule.ep_group_S]),
        "quota_count": _count_cells(plan.quota_index_Q4, shape),
        "quota_expert": plan.quota_index_Q4[:, 2],
        "quota_rank": plan.quota_index_Q4[:, 3],
        "quota_tokens": plan.quota_tokens_Q,
        "lower_bound": plan.lower_bound_ML,
        "total/load": totals.load_LE,
        "total/replicas": totals.num_replicas_LE,
        "total/before": totals.before_LR,
        "total/after": totals.after_LR,
    }
    if load is not None and plan.prediction.basis is Basis.REPLAY:  # a forecast promises no routing
        arrays |= {source_field(rank): load_MLB for rank, load_MLB in enumerate(source_load(load))}
    fields = {"meta": seal(plan.meta)} | {name: PackedArray.of(array).to_bytes() for name, array in arrays.items()}
    return fields | _encode_shares(plan, len(replica_index_Y4))


def _encode_shares(plan: Plan, num_replicas: int) -> dict[str, bytes]:
    ranks = range(plan.cluster.num_ranks)
    if plan.prediction.basis is not Basis.REPLAY:  # the fractions of a forecast are equal for all source ranks
        packed = PackedArray.of(plan.shares.of_rank(0)).to_bytes()
        return {share_field(rank): packed for rank in ranks}
    # Narrowed block by block, because the wide shares of all ranks would be the largest array by far.
    share_RY = np.zeros((len(ranks), num_replicas), dtype=np.uint8)
    start = 0
    for block_BR in plan.shares.blocks():
        dtype = np.min_scalar_type(int(block_BR.max(initial=0)))
        if dtype.itemsize > share_RY.itemsize:
            share_RY = share_RY.astype(dtype)
        share_RY[:, start : start + len(block_BR)] = block_BR.T
        start += len(block_BR)
    return {share_field(rank): PackedArray.of(share_RY[rank]).to_bytes() for rank in ranks}


def decode_plan(fields: Mapping[str, bytes], what: str) -> Plan:
    """Decode a plan; its shares are decoded when they are first read.

    Args:
        fields: all fields of `encode_plan`, or only `QUOTA_FIELDS` if nobody reads the shares.
        what: the name of the plan, for errors.

    Raises:
        Corrupt: a field is not the one that was stored.
    """
    meta = json.loads(unseal(fields["meta"], f"field 'meta' of {what}"))
    cluster = Cluster(**meta["cluster"])

    def unpack(name: str) -> NDArray[np.generic]:
        return PackedArray.from_bytes(fields[name], f"field {name!r} of {what}").unpack()

    def blocks() -> Iterator[NDArray[np.int32]]:
        share_RY = [unpack(share_field(rank)) for rank in range(cluster.num_ranks)]
        for start in range(0, len(share_RY[0]), _SHARE_BLOCK):
            yield np.stack([share_Y[start : start + _SHARE_BLOCK] for share_Y in share_RY], axis=1).astype(np.int32)

    micro_batch_S, source_rank_S, ep_group_S = unpack("schedule").astype(np.int32)
    return Plan(
        model=Model(**meta["model"]),
        cluster=cluster,
        params=PlanParams(**meta["params"]),
        schedule=Schedule(micro_batch_S=micro_batch_S, source_rank_S=source_rank_S, ep_group_S=ep_group_S),
        home_rank_LE=unpack("home_rank").astype(np.int32),
        quota_index_Q4=_index(unpack("quota_count"), unpack("quota_expert"), unpack("quota_rank")),
        quota_tokens_Q=unpack("quota_tokens").astype(np.int64),
        shares=SourceShares(num_ranks=cluster.num_ranks, blocks=blocks),
        lower_bound_ML=unpack("lower_bound").astype(np.float64),
        prediction=Prediction(**meta["prediction"]),
        reason=meta["reason"],
        repacked=meta["repacked"],
    )


def decode_totals(values: Sequence[bytes | None], what: str) -> PlanTotals | None:
    """Decode the fields of a plan's hash, in the order of `TOTALS_FIELDS`; return None if any is missing.

    Raises:
        Corrupt: a field is not the one that was stored; the text names the plan as `what`.
    """
    found = [
        PackedArray.from_bytes(value, f"field {name!r} of {what}").unpack()
        for name, value in zip(TOTALS_FIELDS, values, strict=True)
        if value is not None
    ]
    if len(found) < len(TOTALS_FIELDS):
        return None
    home_rank_LE, load_LE, num_replicas_LE, before_LR, after_LR = found
    return PlanTotals(
        home_rank_LE=home_rank_LE,
        load_LE=load_LE,
        num_replicas_LE=num_replicas_LE,
        before_LR=before_LR,
        after_LR=after_LR,
    )


def _count_cells(index_Q4: NDArray[np.int32], shape: tuple[int, int]) -> NDArray[np.int64]:
    cell_Q = index_Q4[:, 0].astype(np.int64) * shape[1] + index_Q4[:, 1]
    return np.bincount(cell_Q, minlength=shape[0] * shape[1]).reshape(shape)


def _index(count_ML: NDArray[Any], expert_Q: NDArray[Any], rank_Q: NDArray[Any]) -> NDArray[np.int32]:
    index_Q4 = np.empty((len(expert_Q), 4), dtype=np.int32)
    for column, number_ML in enumerate(np.indices(count_ML.shape, dtype=np.int32)):
        index_Q4[:, column] = np.repeat(number_ML.ravel(), count_ML.ravel())
    index_Q4[:, 2], index_Q4[:, 3] = expert_Q, rank_Q
    return index_Q4
