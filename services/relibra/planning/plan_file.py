"""The plan file: a `.npz` that others may read, equal plans giving equal bytes.

Keys: `home_rank` int32 [L, E]; `micro_batch`, `source_rank`, `ep_group` int32 [S]; `quota_index` int32 [Q, 4] = (row,
layer, expert, rank); `quota_tokens` int64 [Q]; `source_quota` int32 [Q, R]; `lower_bound` float64 [M, L]; `repacked`
only where the planner packed; `meta` JSON text with model, cluster, params, forecast, reason and the digest in
hexadecimal.
"""

import io
import json
import zipfile
import zlib

import numpy as np

from relibra.errors import InvalidInput, InvalidPlan
from relibra.planning.plan import Forecast, Plan
from relibra.planning.schedule import Schedule
from relibra.planning.topology import Cluster, Model, PlanParams

# Whatever zipfile, zlib, numpy and the dataclasses raise on bytes that are not a plan: MemoryError where a header
# claims a huge array, RuntimeError where it claims encryption or an unknown compression.
_UNREADABLE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OSError,
    EOFError,
    RuntimeError,
    MemoryError,
    zlib.error,
    zipfile.BadZipFile,
)

_KEYS = [
    "home_rank",
    "micro_batch",
    "source_rank",
    "ep_group",
    "quota_index",
    "quota_tokens",
    "source_quota",
    "lower_bound",
    "meta",
]


def plan_to_bytes(plan: Plan) -> bytes:
    """Encode a plan as the content of its file."""
    arrays: dict[str, object] = dict(plan.arrays())
    if plan.repacked:
        arrays["repacked"] = np.True_
    arrays["meta"] = json.dumps(json.loads(plan.meta) | {"digest": plan.digest.hex()}, sort_keys=True)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def plan_from_bytes(data: bytes) -> Plan:
    """Decode a plan file.

    Raises:
        InvalidPlan: the bytes are not a plan, or do not match the digest they carry.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            missing = [key for key in _KEYS if key not in file]
            if missing:
                raise InvalidPlan.of("plan file", expected=f"the keys {', '.join(_KEYS)}", got=f"no {missing[0]}")
            array = {key: file[key] for key in file}
        meta = json.loads(str(array["meta"]))
        plan = Plan(
            model=Model(**meta["model"]),
            cluster=Cluster(**meta["cluster"]),
            params=PlanParams(**meta["params"]),
            schedule=Schedule(
                micro_batch_S=array["micro_batch"],
                source_rank_S=array["source_rank"],
                ep_group_S=array["ep_group"],
            ),
            home_rank_LE=array["home_rank"],
            quota_index_Q4=array["quota_index"],
            quota_tokens_Q=array["quota_tokens"],
            source_quota_QR=array["source_quota"],
            lower_bound_ML=array["lower_bound"],
            forecast=Forecast(**meta["forecast"]),
            reason=meta["reason"],
            repacked=meta["repacked"],
        )
    except _UNREADABLE as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidPlan.of("plan file", expected="a .npz written by relibra", got=error) from error
    if plan.digest.hex() != meta["digest"]:
        raise InvalidPlan.of("plan file", expected=f"content of digest {meta['digest']}", got=plan.digest.hex())
    return plan
