"""Dataclasses as JSON."""

import json
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness.services import CLUSTER, MODEL
from relibra.planning import PlanId, PlanParams
from relibra.status.views import to_json, view
from relibra.store import JobRecord

JOB = JobRecord(
    job_id="job", epoch=7, began_at=0.0, model=MODEL, cluster=CLUSTER, params=PlanParams(), token_hash="secret"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part."""

    began_at: float
    ended_at: float | None
    """Unix time of the end; None while
    it lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Part):
    """A whole."""

    id: PlanId
    epoch: int
    digest: bytes
    load_LE: NDArray[np.float64]
    parts: list[Part]
    secret: str = field(repr=False)
    job: JobRecord

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return len(self.parts)


WHOLE = Whole(
    began_at=0.0,
    ended_at=None,
    id=PlanId(epoch=1 << 63, version=2),
    epoch=1 << 63,
    digest=b"\xff",
    load_LE=np.array([[1.0, 2.0], [3.0, 0.5]]),
    parts=[Part(began_at=1.0, ended_at=2.0)],
    secret="secret",
    job=JOB,
)


def test_a_view_has_fields_and_properties_in_a_form_that_every_reader_of_json_understands() -> None:
    assert json.loads(b"".join(to_json(view(list[Whole]), [WHOLE]))) == [
        {
            "began_at": "1970-01-01T00:00:00Z",
            "ended_at": None,
            "id": "8000000000000000.2",
            "epoch": "8000000000000000",
            "digest": "ff",
            "load": [[1.0, 2.0], [3.0, 0.5]],
            "parts": [{"began_at": "1970-01-01T00:00:01Z", "ended_at": "1970-01-01T00:00:02Z"}],
            "num_parts": 1,
        }
    ]


def test_docstrings_describe_the_fields_also_those_of_a_base() -> None:
    schema = view(Whole).model_json_schema(mode="serialization")
    assert schema["description"] == "A whole."
    assert schema["properties"]["num_parts"]["description"] == "The number of parts."
    assert schema["properties"]["ended_at"]["description"] == "Time of the end; null while it lasts."


def test_S6_what_repr_leaves_out_and_registrations_are_not_shown() -> None:
    assert "secret" not in repr(JOB)
    assert b"secret" not in b"".join(to_json(view(Whole), WHOLE))
    assert b"secret" not in b"".join(to_json(view(JobRecord), JOB))
