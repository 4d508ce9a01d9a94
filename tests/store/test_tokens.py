import json

import pytest

from harness.services import Loop
from relibra.errors import NotFound, Unauthenticated
from relibra.store import Role, Store
from relibra.store.keys import TOKENS
from relibra.store.tokens import Identities


def test_S6_a_token_is_found_by_its_secret_alone(store: Store, run: Loop) -> None:
    record, token = run(store.create_token("job", Role.TRAINER))
    assert run(store.find_token(token)) == record
    assert (record.job_id, record.role, record.expires_at) == ("job", Role.TRAINER, None)
    for wrong in (
        "",
        "relibra",
        token[:-1],
        token + "x",
        token.replace("relibra_", "other_"),
        f"relibra_{record.token_id}_",
    ):
        assert run(store.find_token(wrong)) is None


def test_S6_redis_holds_no_secret(store: Store, run: Loop) -> None:
    record, token = run(store.create_token("job", Role.ROLLOUT))
    secret = token.split("_", 2)[2]
    stored = run(store._redis.hget("relibra:tokens", record.token_id)).decode()
    assert secret not in stored
    assert secret not in repr(record)


def test_S6_revoked_and_expired_tokens_are_worthless(store: Store, run: Loop) -> None:
    record, token = run(store.create_token("job", Role.VIEWER))
    _, expired = run(store.create_token("job", Role.VIEWER, lifetime_s=-1))
    assert run(store.find_token(expired)) is None
    assert record in run(store.list_tokens())[0]
    run(store.revoke_token(record.token_id))
    assert run(store.find_token(token)) is None
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
