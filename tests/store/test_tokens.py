import asyncio
import json
import time
from types import SimpleNamespace

import pytest

from harness.services import Loop
from relibra.errors import NotFound, Unauthenticated
from relibra.store import Role, Store
from relibra.store.keys import TOKENS
from relibra.store.tokens import Identities


def test_S6_a_token_is_found_by_its_secret_alone(store: Store, run: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relibra.store.tokens._REREAD_S", 0.0)
    record, token = run(store.create_token("job", Role.TRAINER))
    identities = Identities(store)
    assert run(identities.identify(token)) == record
    assert (record.job_id, record.role, record.expires_at) == ("job", Role.TRAINER, None)
    for wrong in (
        "",
        "relibra",
        token[:-1],
        token + "x",
        token.replace("relibra_", "other_"),
        f"relibra_{record.token_id}_",
    ):
        with pytest.raises(Unauthenticated, match="the token is not valid"):
            run(identities.identify(wrong))


def test_S6_a_token_that_was_just_made_is_found_and_unknown_ones_cost_one_read(
    store: Store, run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    identities, reads = Identities(store), []
    documents = store.token_documents

    async def count() -> dict[bytes, bytes]:
        reads.append(1)
        return await documents()

    monkeypatch.setattr(store, "token_documents", count)

    async def show_many() -> None:
        await asyncio.gather(*(identities.identify(f"relibra_{number:08x}_none") for number in range(1000)))

    with pytest.raises(Unauthenticated):
        run(show_many())
    assert len(reads) <= 2
    record, token = run(store.create_token("job", Role.TRAINER))
    assert run(identities.identify(token)) == record
    num_reads = len(reads)
    for _ in range(10):
        run(identities.identify(token))
    assert len(reads) == num_reads, "a known token asks nothing"


def test_S6_a_token_works_for_two_seconds_after_it_is_revoked_and_for_none_after_it_expires(
    store: Store, run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(monotonic_s=time.monotonic(), time_s=time.time())
    clock = SimpleNamespace(monotonic=lambda: now.monotonic_s, time=lambda: now.time_s)
    monkeypatch.setattr("relibra.store.tokens.time", clock)
    identities = Identities(store)
    record, token = run(store.create_token("job", Role.TRAINER))
    _, short = run(store.create_token("job", Role.TRAINER, lifetime_s=1.0))
    assert run(identities.identify(token)) == record
    run(identities.identify(short))
    run(store.revoke_token(record.token_id))
    now.monotonic_s, now.time_s = now.monotonic_s + 1.5, now.time_s + 1.5
    assert run(identities.identify(token)) == record
    with pytest.raises(Unauthenticated):
        run(identities.identify(short))
    now.monotonic_s += 0.6
    with pytest.raises(Unauthenticated):
        run(identities.identify(token))


def test_S6_redis_holds_no_secret(store: Store, run: Loop) -> None:
    record, token = run(store.create_token("job", Role.ROLLOUT))
    secret = token.split("_", 2)[2]
    stored = run(store._redis.hget("relibra:tokens", record.token_id)).decode()
    assert secret not in stored
    assert secret not in repr(record)


def test_S6_revoked_and_expired_tokens_are_worthless(store: Store, run: Loop) -> None:
    record, token = run(store.create_token("job", Role.VIEWER))
    _, expired = run(store.create_token("job", Role.VIEWER, lifetime_s=-1))
    with pytest.raises(Unauthenticated):
        run(Identities(store).identify(expired))
    assert record in run(store.list_tokens())[0]
    run(store.revoke_token(record.token_id))
    with pytest.raises(Unauthenticated):
        run(Identities(store).identify(token))
    with pytest.raises(NotFound, match="no token"):
        run(store.revoke_token(record.token_id))


@pytest.mark.parametrize("document", ["{", "[]", "{}", b"\xff", "created_at", "role", "sha256"])
def test_S9_a_damaged_record_is_refused_by_name_and_hides_no_other(
    store: Store, run: Loop, caplog: pytest.LogCaptureFixture, document: str | bytes
) -> None:
    record, token = run(store.create_token("job", Role.TRAINER))
    other, other_token = run(store.create_token("job", Role.VIEWER))
    if document in (stored := json.loads(run(store._redis.hget(TOKENS, record.token_id)))):
        del stored[document]
        document = json.dumps(stored)
    run(store._redis.hset(TOKENS, record.token_id, document))
    identities = Identities(store)
    for _ in range(2):
        with pytest.raises(Unauthenticated, match=rf"^the token cannot be checked: .*token {record.token_id} was"):
            run(identities.identify(token))
    assert caplog.text.count(f"the record of token {record.token_id} was changed") == 1, "once, not at each call"
    assert run(identities.identify(other_token)) == other
    records, damaged = run(store.list_tokens())
    assert records == [other]
    assert list(damaged) == [record.token_id]
    run(store.revoke_token(record.token_id))
    assert run(store.list_tokens()) == ([other], {})


def test_S9_tokens_that_cannot_be_looked_up_are_refused_by_name(store: Store, run: Loop) -> None:
    _, token = run(store.create_token("job", Role.TRAINER))
    run(store._redis.unlink(TOKENS))
    run(store._redis.set(TOKENS, "oops"))
    with pytest.raises(Unauthenticated, match=f"key {TOKENS} in Redis is no hash"):
        run(Identities(store).identify(token))
