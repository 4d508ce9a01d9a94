"""A change of what Redis holds changes the schema version, so that no service misreads the data of another version."""

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

from redis import Redis
from store.test_reports import report

from harness.doc_blocks import REPOSITORY
from harness.services import CLUSTER, MODEL, Loop
from harness.step_samples import IDS, LONG_S, OTHER_PLAN, SCHEDULE, expire, lease_of, publish, report_all, sequence
from relibra.errors import Corrupt, NotFound
from relibra.planning import CostModel, Phase, PlanParams
from relibra.store import PackingState, Refused, Role, Store
from relibra.store.keys import AHEAD_KEYS, ATTEMPT_KEYS, SCHEMA_VERSION, STEP_KEYS, TOKENS
from relibra.store.seal import unseal

_PINNED = REPOSITORY / "tests" / "golden" / "schema.json"
_DATA = (
    (re.compile(r"\b[0-9a-f]{16}\b"), "<epoch>"),
    (re.compile(r"\bseq-\d+"), "<sequence>"),
    (re.compile(r"\d+"), "<number>"),
)


def _fill(store: Store, run: Loop) -> None:
    """Take a job through everything that the store keeps of it."""
    run(store.check())
    assert not run(store.has_gone_back())
    run(store.note_loss("everything"))
    run(store.create_token("job", Role.TRAINER, lifetime_s=60.0))
    job = run(store.register_job("job", MODEL, CLUSTER, PlanParams(cost=CostModel())))
    run(store.put_counts([sequence(job.epoch, "seq-0", step=2, policies="3-4")]))
    for step in (1, 2):
        report_all(store, run, step)
        publish(store, run, job, step, OTHER_PLAN)
        for phase in Phase:
            for rank in range(CLUSTER.num_ranks):
                run(store.put_report(job, report(job, phase, rank, step)))
    assert [len(each) for each in run(store.get_executions(job, (1, 2)))] == [2, 2], "a sum is missing"
    assert expire(store, run, job, [1]) == [1]
    assert run(store.end_solve(lease_of(store, run, job, 3), "it cannot be planned"))
    run(store.note_refusal(job, Refused.SCHEDULE, 5, NotFound("sequence 'seq-0' of step 5 was never reported")))
    run(store.note_packing(job, 6, PackingState.PACKED, "packing brings the floor of nodes from 1.2 to 1.1"))
    report_all(store, run, 6)
    run(store.put_counts([sequence(job.epoch, "seq-9", step=None, policies="3-4")]))
    run(store.see("job", job.epoch))
    after = run(store.rollback("job", job.epoch, 5))
    run(store.put_schedule(after, 7, IDS, SCHEDULE))
    assert not run(store.end_solve(lease_of(store, run, after, 7), "it crashed", max_crashes=2))
    for rank in range(CLUSTER.num_ranks):
        run(store.put_report(after, report(after, Phase.UPDATE, rank, 8)))
    assert run(store.take_lease("job", LONG_S))
    run(store.end_attempt("job", after.epoch))


def _described(value: Any) -> Any:
    """Return names and types of a JSON document without its data."""
    match value:
        case dict():
            return {name: _described(each) for name, each in sorted(value.items())}
        case list():
            groups = ((described, len(list(group))) for described, group in groupby(map(_described, value)))
            return [described if number == 1 else [number, described] for described, number in groups]
        case None | bool():
            return str(value)
        case int() | float():
            return "number"
    return "text"


def _contents(data: bytes) -> Any:
    try:
        payload, kind = unseal(data, "this"), "sealed "
    except Corrupt:
        payload, kind = data, ""
    try:
        described = _described(json.loads(payload))
        return {"sealed": described} if kind else described
    except ValueError:
        return f"{kind}text" if payload.isascii() and payload.decode().isprintable() else f"{kind}bytes"


def _without_data(name: str) -> str:
    for data, stands_for in _DATA:
        name = data.sub(stands_for, name)
    return name


def _schema(client: "Redis") -> dict[str, dict[str, list[Any]]]:
    """Return what each kind of key holds, by field."""
    found: dict[str, dict[str, list[Any]]] = {}
    for key in sorted(client.scan_iter()):
        kind = client.type(key).decode()
        fields = {
            "string": lambda key: [(b"", client.get(key))],
            "hash": lambda key: client.hgetall(key).items(),
            "set": lambda key: [(b"", each) for each in client.smembers(key)],
            "zset": lambda key: [(b"", each) for each in client.zrange(key, 0, -1)],
        }[kind](key)
        described = found.setdefault(f"{_without_data(key.decode())} ({kind})", {})
        for field, data in fields:
            name = "<token>" if key.decode() == TOKENS else _without_data(field.decode())
            contents = _contents(data)
            if contents not in described.setdefault(name, []):
                described[name].append(contents)
    return {
        key: {name: sorted(contents, key=json.dumps) for name, contents in sorted(described.items())}
        for key, described in found.items()
    }


def test_what_redis_holds_is_that_of_the_schema_version(
    store: Store, run: Loop, redis_url: str, tmp_path: Path
) -> None:
    _fill(store, run)
    with Redis.from_url(redis_url) as client:
        found = {"version": SCHEMA_VERSION, "keys": _schema(client)}
    written = {key.rpartition(":")[2].split()[0] for key in found["keys"] if ":<epoch>:" in key}
    written |= {key.rpartition(":")[2].split()[0] for key in found["keys"] if ":ahead" in key}
    assert {*AHEAD_KEYS, *ATTEMPT_KEYS, *STEP_KEYS} <= written, "the job above does not write all keys"
    (new := tmp_path / "schema.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    pinned = json.loads(_PINNED.read_text())
    assert found["keys"] == pinned["keys"] or pinned["version"] < SCHEMA_VERSION, (
        f"what Redis holds has changed: raise SCHEMA_VERSION in keys.py, and then: cp {new} {_PINNED}"
    )
    assert found == pinned, f"the schema has another version: cp {new} {_PINNED}"
