"""What clients of a planner saw, written down as it happened, and the model that any such history must fit.

An event is told when its answer has come, and says how many events had been told when the question was asked: so of two
events it is known whether one was over before the other began, and nothing is assumed of those that overlapped.
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
    """One answer. `kept` is what the store holds at the end of a step that was not removed: ids and plan."""

    kind: Kind
    asked_after: int
    job_id: str
    epoch: int
    step: int = 0
    sequence_ids: list[str] = field(default_factory=list)
    version: int = 0
    digest: str = ""


class History:
    """Events of one run, one JSON a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._num_events = 0
        path.touch()

    def __len__(self) -> int:
        return self._num_events

    def tell(self, event: Event) -> None:
        """Write an event down."""
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps(asdict(event)) + "\n")
            self._num_events += 1

    def read(self) -> list[Event]:
        """Return all events, as they were told."""
        with self._path.open() as file:
            return [Event(**json.loads(line)) for line in file]


def violations(events: Iterable[Event]) -> list[str]:
    """Return what of a history breaks a promise, by the promise's id; empty for a history that may be."""
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
    """A plan whose schedule was submitted when another plan had been seen is above it."""
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
    """What was told in the last epoch is there at the end, where anybody looked."""
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
