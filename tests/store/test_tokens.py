import pytest

from harness.services import Loop
from relibra.errors import NotFound
from relibra.store import Role, Store


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
    assert record in run(store.list_tokens())
    run(store.revoke_token(record.token_id))
    assert run(store.find_token(token)) is None
    with pytest.raises(NotFound, match="no token"):
        run(store.revoke_token(record.token_id))
