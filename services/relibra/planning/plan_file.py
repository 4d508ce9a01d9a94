"""The plan file: a `.npz` that others may read, equal plans giving equal bytes.

Keys: `home_rank` int32 [L, E]; `micro_batch`, `source_rank`, `ep_group` int32 [S]; `quota_index` int32 [Q, 4] = (row,
layer, expert, rank); `quota_tokens` int64 [Q]; `lower_bound` float64 [M, L]; `replica_share` int32 [Y, R], for every
quota away from its expert's home the tokens by the source rank they come from; `repacked` only where the planner
packed; `meta` JSON text with model, cluster, params, forecast, reason and the digest in hexadecimal. The forecast
says its `basis` where loads were expected and not known.
"""

import io
import json
import zipfile
import zlib
from typing import IO

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput, InvalidPlan
from relibra.planning.plan import Forecast, Plan
from relibra.planning.schedule import Schedule
from relibra.planning.shares import SourceShares
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
    "lower_bound",
    "replica_share",
    "meta",
]


def plan_to_bytes(plan: Plan) -> bytes:
    """Encode a plan as the content of its file."""
    arrays: dict[str, NDArray[np.generic]] = plan.arrays()
    if plan.repacked:
        arrays["repacked"] = np.array(True)
    arrays["meta"] = np.array(json.dumps(json.loads(plan.meta) | {"digest": plan.digest.hex()}, sort_keys=True))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        with file.open("replica_share.npy", "w", force_zip64=True) as member:
            _write_shares(member, plan)
    return buffer.getvalue()


def _write_shares(member: IO[bytes], plan: Plan) -> None:
    """Write the array block by block: it is the one that is large."""
    shape = (int(plan.is_replica_Q.sum()), plan.cluster.num_ranks)
    header = {"descr": "<i4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(member, header)
    for block_BR in plan.shares.blocks():
        member.write(np.ascontiguousarray(block_BR, dtype="<i4").data)


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
            shares=SourceShares.stored(array["replica_share"]),
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
