import pytest
from redis import Redis

from relibra.cli.checks.finding import CheckResult
from relibra.cli.checks.redis import examine, judge
from relibra.store.keys import SCHEMA_VERSION

WELL = {"redis_version": "7", "aof_enabled": 1, "maxmemory_policy": "noeviction", "maxmemory": 100, "used_memory": 10}


def test_a_redis_of_relibra_up_passes_and_nothing_is_written(redis_url):
    assert {each.verdict for each in examine(redis_url)} == {CheckResult.OK}
    with Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0


@pytest.mark.parametrize(
    ("change", "schema", "verdict", "fix"),
    [
        ({"aof_enabled": 0}, None, CheckResult.FAILED, "set `appendonly yes`"),
        ({"aof_last_write_status": "err"}, None, CheckResult.FAILED, "free space on its disk"),
        ({"maxmemory_policy": "allkeys-lru"}, None, CheckResult.FAILED, "set `maxmemory-policy noeviction`"),
        ({"used_memory": 90}, None, CheckResult.WARNING, "raise `maxmemory`"),
        ({}, SCHEMA_VERSION + 1, CheckResult.FAILED, "upgrade relibra"),
    ],
)
def test_a_problem_is_named_with_its_fix(change, schema, verdict, fix):
    (wrong,) = [each for each in judge(WELL | change, schema) if each.verdict is not CheckResult.OK]
    assert wrong.verdict is verdict
    assert fix in wrong.fix


def test_the_password_of_an_unreachable_redis_is_not_shown():
    (found,) = examine("redis://user:hush@127.0.0.1:1/0")
    assert found.verdict is CheckResult.FAILED
    assert "hush" not in found.reason
