import json

import pytest

from harness.services import Loop
from relibra.errors import InvalidInput, Unauthenticated
from relibra.store import ALL_JOBS, Role, Store
from relibra.store.keys import TOKENS
from relibra.store.tokens import Identities


def test_S6_a_token_is_made_listed_without_its_secret_and_revoked(relibra, store: Store, run: Loop, redis_url: str):
    made = json.loads(
        relibra("tokens", "create", "--role", "viewer", "--job", "mine", "--json", RELIBRA_REDIS_URL=redis_url)
    )
    assert run(Identities(store).identify(made["token"])).job_id == "mine"
    listed = relibra("tokens", "list", "--json", RELIBRA_REDIS_URL=redis_url)
    assert [each["token_id"] for each in json.loads(listed)] == [made["token_id"]]
    assert made["token"] not in listed
    assert made["token_id"] in relibra("tokens", "list", RELIBRA_REDIS_URL=redis_url)
    said = relibra("tokens", "revoke", made["token_id"], "--json", RELIBRA_REDIS_URL=redis_url)
    assert json.loads(said) == {"token_id": made["token_id"], "is_revoked": True}
    with pytest.raises(Unauthenticated):
        run(Identities(store).identify(made["token"]))


def test_S6_a_token_for_all_jobs_must_be_asked_for(relibra, store: Store, run: Loop, redis_url: str):
    create = ("tokens", "create", "--role", "viewer")
    for options, got in (
        ((), "none"),
        (("--job", "mine", "--all-jobs"), "--job and --all-jobs"),
        (("--prefix", "", "--job", "mine", "--prefix", "red-"), "--job and --prefix"),
    ):
        with pytest.raises(
            InvalidInput, match=f"expected one of --job JOB, --prefix PREFIX and --all-jobs, got {got}$"
        ):
            relibra(*create, *options, RELIBRA_REDIS_URL=redis_url)
    assert run(store.list_tokens()) == ([], {})
    for options, scope in ((("--all-jobs",), ALL_JOBS), (("--prefix", "red-"), "red-*")):
        made = json.loads(relibra(*create, *options, "--json", RELIBRA_REDIS_URL=redis_url))
        assert run(Identities(store).identify(made["token"])).job_id == scope


def test_S6_a_token_for_a_name_that_no_job_can_have_is_refused(relibra, redis_url: str):
    for option in ("--job", "--prefix"):
        with pytest.raises(InvalidInput, match="for example 'My-Job', got 'My Job'"):
            relibra("tokens", "create", "--role", "viewer", option, "My Job", RELIBRA_REDIS_URL=redis_url)


def test_S9_a_damaged_token_is_named_beside_the_others(relibra, store: Store, run: Loop, redis_url: str):
    sound, _ = run(store.create_token("mine", Role.VIEWER))
    damaged, _ = run(store.create_token("mine", Role.TRAINER))
    run(store._redis.hset(TOKENS, damaged.token_id, "{"))
    said = relibra("tokens", "list", RELIBRA_REDIS_URL=redis_url)
    assert sound.token_id in said
    assert f"the record of token {damaged.token_id} was changed in Redis" in said
    assert f"Revoke it: relibra tokens revoke {damaged.token_id}\n" in said
    listed = json.loads(relibra("tokens", "list", "--json", RELIBRA_REDIS_URL=redis_url))
    assert [each["token_id"] for each in listed] == [sound.token_id]
    relibra("tokens", "revoke", damaged.token_id, RELIBRA_REDIS_URL=redis_url)
    assert damaged.token_id not in relibra("tokens", "list", RELIBRA_REDIS_URL=redis_url)
