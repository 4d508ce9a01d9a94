import json

from harness.services import Loop
from relibra.store import Store


def test_S6_a_token_is_made_listed_without_its_secret_and_revoked(relibra, store: Store, run: Loop, redis_url: str):
    made = json.loads(
        relibra("tokens", "create", "--role", "viewer", "--job", "mine", "--json", RELIBRA_REDIS_URL=redis_url)
    )
    assert run(store.find_token(made["token"])).job_id == "mine"
    listed = relibra("tokens", "list", "--json", RELIBRA_REDIS_URL=redis_url)
    assert [each["token_id"] for each in json.loads(listed)] == [made["token_id"]]
    assert made["token"] not in listed
    assert made["token_id"] in relibra("tokens", "list", RELIBRA_REDIS_URL=redis_url)
    relibra("tokens", "revoke", made["token_id"], RELIBRA_REDIS_URL=redis_url)
    assert run(store.find_token(made["token"])) is None
