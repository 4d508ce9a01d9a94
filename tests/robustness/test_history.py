"""The model of histories accepts a history that keeps the promises, and names a promise that is broken."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.robustness.history import Event, History, violations


def event(kind: str, asked_after: int = 0, **fields: object) -> Event:
    return Event(**{"kind": kind, "asked_after": asked_after, "job_id": "job", "epoch": 7} | fields)


GOOD = [
    event("registered", 0),
    event("acknowledged", 1, step=1, sequence_ids=["a", "b"]),
    event("submitted", 2, step=1),
    event("planned", 3, step=1, version=1, digest="one"),
    event("submitted", 4, step=2),
    event("planned", 5, step=2, version=2, digest="two"),
    event("planned", 0, step=1, version=1, digest="one"),
    event("kept", 7, step=1, sequence_ids=["b", "a", "c"], version=1, digest="one"),
    event("kept", 7, step=2, version=2, digest="two"),
]


def test_a_history_that_may_be_comes_back_from_its_file_and_breaks_nothing(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    for each in GOOD:
        history.tell(each)
    assert history.read() == GOOD
    assert len(history) == len(GOOD)
    assert violations(GOOD) == []


def test_what_overlaps_may_come_in_any_order() -> None:
    overlapping = [event("registered", 0, epoch=8), event("registered", 0, epoch=7)]
    assert violations(overlapping) == []
    assert violations([overlapping[0], replace(overlapping[1], asked_after=1)]) == [
        "S4: epoch 7 was given out after 8 of job 'job'"
    ]


@pytest.mark.parametrize(
    ("index", "change", "promise"),
    [
        (5, {"version": 1}, "S3"),
        (6, {"digest": "other"}, "S3"),
        (6, {"version": 9}, "S3"),
        (7, {"digest": "other"}, "S3"),
        (7, {"sequence_ids": ["a"]}, "L3: 1 acknowledged"),
        (8, {"version": 0}, "L3: the plan of step 2"),
    ],
)
def test_S3_L3_what_may_not_be_is_named(index: int, change: dict[str, object], promise: str) -> None:
    changed = [replace(each, **change) if at == index else each for at, each in enumerate(GOOD)]
    assert any(fault.startswith(promise) for fault in violations(changed))


def test_L3_what_an_older_epoch_held_is_not_missed() -> None:
    wiped = [*GOOD[:4], event("registered", 4, epoch=8), event("kept", 5, epoch=8, step=3)]
    assert violations(wiped) == []
