"""The plan file: a `.npz` that other programs may read. Equal plans give equal bytes.

Its keys are:

- `home_rank`, int32 `[L, E]`: the home rank of every expert.
- `micro_batch`, `source_rank`, `ep_group`, int32 `[S]`: the schedule that was planned for.
- `quota_index`, int32 `[Q, 4]`: (row, layer, expert, rank) of every quota.
- `quota_tokens`, int64 `[Q]`: the tokens of every quota.
- `replica_share`, int32 `[Y, R]`: for every quota whose rank is not the expert's home, the tokens from each source
  rank. In a forecast, the fraction of each source rank's tokens instead, in units of 2**-15.
- `lower_bound`, float64 `[M, L]`: tokens of the slowest rank that no plan with this placement goes below.
- `repacked`: true, and present only where relibra chose the schedule.
- `meta`: JSON text with model, cluster, params, prediction, reason, and the digest in hexadecimal. The prediction has
  a `basis` only in a forecast.

S sequences, M rows, L layers, E experts, R EP ranks, Q quotas, Y replicas.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput, InvalidPlan
from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.plan import Plan, Prediction
from relibra.planning.schedule import Schedule
from relibra.planning.shares import SourceShares

# All errors that zipfile, zlib, numpy and the dataclasses raise on bytes that are not a plan. A header that claims a
# huge array gives MemoryError; one that claims encryption or an unknown compression gives RuntimeError.
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
    return b"".join(plan_chunks(plan, plan.digest))


def plan_chunks(plan: Plan, digest: bytes) -> Iterator[bytes]:
    """Encode a plan as the content of its file, in pieces: the first comes at once, and none is large.

    Args:
        plan: the plan to write.
        digest: its digest. Computing it takes reading all shares once more, so a caller that knows it passes it.
    """
    arrays: dict[str, NDArray[np.generic]] = plan.arrays()
    if plan.repacked:
        arrays["repacked"] = np.array(True)
    arrays["meta"] = np.array(json.dumps(json.loads(plan.meta) | {"digest": digest.hex()}, sort_keys=True))
    sink = _Sink()
    # zipfile needs nothing but `write` of a sink that cannot seek. Level 1 is four times as fast as level 6 and gives
    # files a tenth larger.
    with zipfile.ZipFile(cast(IO[bytes], sink), "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
            yield sink.take()
        with file.open("replica_share.npy", "w", force_zip64=True) as member:
            shape = (int(plan.is_replica_Q.sum()), plan.cluster.num_ranks)
            np.lib.format.write_array_header_1_0(member, {"descr": "<i4", "fortran_order": False, "shape": shape})
            for block_BR in plan.shares.blocks():
                member.write(np.ascontiguousarray(block_BR, dtype="<i4").data)
                yield sink.take()
    yield sink.take()


class _Sink:
    """A sink that keeps what is written to it until it is taken."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def flush(self) -> None:
        """Do nothing: nothing is buffered below this sink."""

    def take(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken


def plan_from_bytes(data: bytes) -> Plan:
    """Decode a plan file.

    Raises:
        InvalidPlan: the bytes are not a plan file, or the content does not have the digest that the file names.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            missing = [key for key in _KEYS if key not in file]
            if missing:
                raise InvalidPlan.of("plan file", expected=f"the keys {', '.join(_KEYS)}", got=f"no {missing[0]}")
            array = {key: file[key] for key in file}
        meta = json.loads(str(array["meta"]))
        if "forecast" in meta:
            raise InvalidPlan(
                "this plan file was written by relibra 0.1.0 or older; run `relibra plan` again to write it anew"
            )
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
            prediction=Prediction(**meta["prediction"]),
            reason=meta["reason"],
            repacked=meta["repacked"],
        )
    except _UNREADABLE as error:
        if isinstance(error, InvalidInput | InvalidPlan):
            raise
        raise InvalidPlan.of("plan file", expected="a .npz that relibra wrote", got=error) from error
    if plan.digest.hex() != meta["digest"]:
        raise InvalidPlan.of("plan file", expected=f"content of digest {meta['digest']}", got=plan.digest.hex())
    return plan
