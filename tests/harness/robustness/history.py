"""A record of the answers that clients of a planner got, and the model that every such history must fit.

A client records an event when its answer has come, with the number of events that were recorded when it asked. Two
events are ordered only if one was recorded before the other was asked; the model assumes nothing about events that
overlapped.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["registered", "acknowledged", "submitted", "planned", "kept"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One answer. A `kept` event holds what the store has of a step at the end: sequence ids and the plan."""

    kind: Kind
    asked_after: int
    job_id: str
    epoch: int
    step: int = 0
    sequence_ids: list[str] = field(default_factory=list)
    version: int = 0
    digest: str = ""


class History:
    """The events of one run, one JSON document per line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._num_events = 0
        self.num_planned = 0
        """How many plans clients saw."""
        path.touch()

    def __len__(self) -> int:
        return self._num_events

    def tell(self, event: Event) -> None:
        """Append an event."""
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps(asdict(event)) + "\n")
            self._num_events += 1
            self.num_planned += event.kind == "planned"

    def read(self) -> list[Event]:
        """Return all events in the order in which they were recorded."""
        with self._path.open() as file:
            return [Event(**json.loads(line)) for line in file]


def violations(events: Iterable[Event]) -> list[str]:
    """Return the broken promises of a history, each with its id; the list is empty if the history fits the model."""
    by_job: dict[str, list[tuple[int, Event]]] = defaultdict(list)
    for index, event in enumerate(events, start=1):
        by_job[event.job_id].append((index, event))
    return [
        f"{fault} of job {job_id!r}"
        for job_id, told in by_job.items()
        for check in (_falling_epochs, _changed_plans, _falling_versions, _lost)
        for fault in check(told)
    ]


_Told = list[tuple[int, Event]]


def _of_kind(told: _Told, kind: Kind) -> _Told:
    return [(index, event) for index, event in told if event.kind == kind]


def _falling_epochs(told: _Told) -> Iterator[str]:
    over: list[tuple[int, int]] = []
    for index, event in _of_kind(told, "registered"):
        before = max((epoch for told_at, epoch in over if told_at <= event.asked_after), default=0)
        if event.epoch < before:
            yield f"S4: epoch {event.epoch:x} was given out after {before:x}"
        over.append((index, event.epoch))


def _changed_plans(told: _Told) -> Iterator[str]:
    contents: dict[object, object] = {}
    for _, event in told:
        if event.kind == "planned" or (event.kind == "kept" and event.version):
            plan_id, content = (event.epoch, event.version), (event.step, event.digest)
            for name, one in ((plan_id, content), ((event.epoch, "step", event.step), plan_id)):
                if contents.setdefault(name, one) != one:
                    yield f"S3: {name} was {contents[name]}, then {one}"


def _falling_versions(told: _Told) -> Iterator[str]:
    """Check that a plan is newer than every plan that was seen before its schedule was submitted."""
    seen: list[tuple[int, Event]] = _of_kind(told, "planned")
    first_asked: dict[tuple[int, int], int] = {}
    for _, event in _of_kind(told, "submitted"):
        name = event.epoch, event.step
        first_asked[name] = min(event.asked_after, first_asked.get(name, event.asked_after))
    for _, event in seen:
        asked_after = first_asked.get((event.epoch, event.step), 0)
        newest = max((each.version for at, each in seen if at <= asked_after and each.epoch == event.epoch), default=0)
        if event.version <= newest:
            yield f"S3: step {event.step} got version {event.version} after version {newest} had been seen"


def _lost(told: _Told) -> Iterator[str]:
    """Check that everything acknowledged in the last epoch is in the store at the end, if the test looked there."""
    kept = {(event.epoch, event.step): event for _, event in _of_kind(told, "kept")}
    if not kept:
        return
    last_epoch = max(epoch for epoch, _ in kept)
    for _, event in told:
        if event.epoch != last_epoch or event.kind not in ("acknowledged", "planned"):
            continue
        found = kept.get((event.epoch, event.step))
        lost = set(event.sequence_ids) - set(found.sequence_ids if found else [])
        if lost:
            yield f"L3: {len(lost)} acknowledged sequences of step {event.step} are lost"
        if event.kind == "planned" and (found is None or not found.version):
            yield f"L3: the plan of step {event.step} is lost"
