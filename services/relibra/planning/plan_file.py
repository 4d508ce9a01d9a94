"""The plan file: a `.npz` that other programs may read. Equal plans give equal bytes.

Its keys are:

- `home_rank`, int32 `[L, E]`: the home rank of every expert.
- `micro_batch`, `source_rank`, `ep_group`, int32 `[S]`: the schedule that was planned for.
- `quota_index`, int32 `[Q, 4]`: (row, layer, expert, rank) of every quota.
- `quota_tokens`, int64 `[Q]`: the tokens of every quota.
- `replica_index`, int32 `[Y, 4]`: (row, layer, expert, rank) of every replica, those that expect no tokens included.
- `lower_bound`, float64 `[M, L]`: tokens of the slowest rank that no plan with this placement goes below.
- `repacked`: true, and present only where relibra chose the schedule.
- `meta`: JSON text with model, cluster, params, prediction, reason, and the digest in hexadecimal. The prediction has
  a `basis` only in a forecast.

S sequences, M rows, L layers, E experts, Q quotas, Y replicas.
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
        digest: its digest, which a caller may know.
    """
    schedule = plan.schedule
    arrays: dict[str, NDArray[np.generic]] = {
        "home_rank": plan.home_rank_LE,
        "micro_batch": schedule.micro_batch_S,
        "source_rank": schedule.source_rank_S,
        "ep_group": schedule.ep_group_S,
        "quota_index": plan.quotas.index_Q4,
        "quota_tokens": plan.quotas.tokens_Q,
        "replica_index": plan.replica_index_Y4,
        "lower_bound": plan.lower_bound_ML,
    }
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
