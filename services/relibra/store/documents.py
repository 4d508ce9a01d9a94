"""The JSON documents in Redis, and the records that they encode.

S sequences.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import Corrupt
from relibra.planning import Cause, Cluster, ExecutionReport, Model, Phase, PlanId, PlanParams, Schedule
from relibra.planning.plan import Prediction
from relibra.store.keys import JobKeys
from relibra.store.records import Attempt, JobRecord, PlanRecord
from relibra.store.seal import unseal


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise `Corrupt`, which names `what`, if the body cannot decode something that has no checksum."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise Corrupt(f"{what} was changed in Redis since it was stored: {why}. Nothing is made of it") from error


def encode_shape(model: Model, cluster: Cluster, params: PlanParams) -> str:
    """Encode the shape that a job registers."""
    return json.dumps({"model": asdict(model), "cluster": asdict(cluster), "params": asdict(params)})


JOB_FIELDS = ("epoch", "registered_at", "shape", "number", "owner", "token")


@lru_cache(maxsize=1024)
def decode_job(
    job_id: str, epoch: bytes, registered_at: bytes, shape: bytes, number: bytes, owner: bytes, token_hash: bytes
) -> JobRecord:
    """Decode a registration, the values of `JOB_FIELDS`. Results are remembered, because every request reads one.

    Raises:
        Corrupt: they cannot be read.
    """
    with reading(f"key {JobKeys(job_id).of('job')}"):
        return JobRecord(
            job_id=job_id,
            epoch=int(epoch, 16),
            began_at=float(registered_at),
            number=int(number),
            owner=owner.decode(),
            token_hash=token_hash.decode(),
            **_decode_shape(shape),
        )


def decode_attempts(
    job_id: str,
    documents: dict[bytes, bytes],
    current_epoch: bytes | None,
    seen_at_ms: bytes | None,
    finished_at_ms: bytes | None,
) -> list[Attempt]:
    """Decode the attempts of a job, the newest first; the last two arguments are times of the current one.

    Raises:
        Corrupt: one cannot be read.
    """
    attempts: list[Attempt] = []
    for epoch in sorted(documents, reverse=True):
        with reading(f"key {JobKeys(job_id).of('attempts')}"):
            fields = json.loads(documents[epoch])
            if epoch == current_epoch:
                fields |= {"heard_at": seen_at_ms, "finished_at": finished_at_ms}
            attempt = Attempt(
                job_id=job_id,
                epoch=int(epoch, 16),
                number=int(fields["number"]),
                owner=fields["owner"],
                token_hash=fields["token"],
                began_at=float(fields["began_at"]),
                ended_at=attempts[-1].began_at if attempts else None,
                heard_at=_seconds(fields.get("heard_at")),
                finished_at=_seconds(fields.get("finished_at")),
                rolled_back_from=int(fields["rolled_back_from"], 16) if "rolled_back_from" in fields else None,
                rolled_back_to=int(fields["rolled_back_to"]) if "rolled_back_to" in fields else None,
                **_decode_shape(fields["shape"]),
            )
        attempts.append(attempt)
    return attempts


def _seconds(milliseconds: bytes | str | None) -> float | None:
    return None if milliseconds is None else float(milliseconds) / 1000


@lru_cache(maxsize=1024)
def _decode_shape(document: bytes | str) -> dict[str, Any]:
    """Decode the shape that a job registered, as the fields of a `JobRecord`."""
    kinds = {"model": Model, "cluster": Cluster, "params": PlanParams}
    return {name: kinds[name](**fields) for name, fields in json.loads(document).items()}


def encode_schedule(sequence_ids: Sequence[str], schedule: Schedule | None) -> str:
    """Encode a schedule, or sequences alone; equal schedules give equal text."""
    places: dict[str, Any] = {}
    if schedule is not None:
        places = {
            "micro_batch": schedule.micro_batch_S.tolist(),
            "source_rank": schedule.source_rank_S.tolist(),
            "ep_group": schedule.ep_group_S.tolist(),
            "is_forward_only": schedule.is_forward_only,
        }
    return json.dumps({"sequence_ids": list(sequence_ids)} | places)


def decode_schedule(document: bytes) -> tuple[list[str], Schedule | None]:
    """Decode the document that `encode_schedule` wrote."""
    fields = json.loads(document)
    if "micro_batch" not in fields:
        return fields["sequence_ids"], None
    schedule = Schedule(
        micro_batch_S=np.array(fields["micro_batch"], dtype=np.int32),
        source_rank_S=np.array(fields["source_rank"], dtype=np.int32),
        ep_group_S=np.array(fields["ep_group"], dtype=np.int32),
        is_forward_only=fields["is_forward_only"],
    )
    return fields["sequence_ids"], schedule


def plan_of(job_id: str, step: int) -> str:
    """Return the name of a plan in errors."""
    return f"the plan of step {step} of job {job_id!r}"


RECORD_FIELDS = ("epoch", "version", "digest", "submitted_at", "published_at", "meta")


def decode_plan_record(job_id: str, step: int, values: list[bytes | None]) -> PlanRecord | None:
    """Decode the fields of a plan's hash, in the order of `RECORD_FIELDS`; return None if there is no plan.

    Raises:
        Corrupt: the description of the plan is not the one that was stored, or a field cannot be read.
    """
    epoch, version, digest, submitted_at, published_at, meta = (value or b"" for value in values)
    if not version:
        return None
    what = plan_of(job_id, step)
    fields = json.loads(unseal(meta, f"field 'meta' of {what}"))
    with reading(what):
        return PlanRecord(
            id=PlanId(epoch=int(epoch, 16), version=int(version)),
            step=step,
            digest=bytes.fromhex(digest.decode()),
            reason=fields["reason"],
            prediction=Prediction(**fields["prediction"]),
            submitted_at=float(submitted_at) if submitted_at else None,
            published_at=float(published_at),
        )


_REPORT_FIELDS = tuple(
    field.name for field in fields(ExecutionReport) if field.name not in ("step", "realised_load_ML", "expert_load_NLE")
)


def encode_execution_report(report: ExecutionReport) -> str:
    """Encode a report without its step and its array."""
    return json.dumps({name: getattr(report, name) for name in _REPORT_FIELDS}, default=asdict)


def decode_execution_report(step: int, document: bytes, realised_load_ML: NDArray[np.int64] | None) -> ExecutionReport:
    """Decode a report; its load is `[0, 0]` if it was not read."""
    fields = json.loads(document)
    fields["phase"], fields["causes"] = Phase(fields["phase"]), tuple(map(Cause, fields["causes"]))
    fields["applied"] = None if fields["applied"] is None else PlanId(**fields["applied"])
    load_ML = np.zeros((0, 0), dtype=np.int64) if realised_load_ML is None else realised_load_ML
    return ExecutionReport(step=step, realised_load_ML=load_ML, **fields)
