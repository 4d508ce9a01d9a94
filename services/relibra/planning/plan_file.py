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

import json
import zipfile
from collections.abc import Iterator
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from relibra.planning.plan import Plan


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
