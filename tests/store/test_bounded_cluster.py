"""Concurrent commands on a Cluster of one server."""

import asyncio
from collections.abc import Iterator

import pytest
from redis.asyncio.cluster import ClusterNode

from harness.redis_deployments import Node
from harness.services import CLUSTER, MODEL, PARAMS, Loop, eventually
from relibra.errors import Unavailable, Unsupported
from relibra.store import Store
from relibra.store.keys import JobKeys

NUM_SLOTS = 16384


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("cluster") / "node", "--cluster-enabled", "yes", "--save", "")
    try:
        with node.client() as client:
            client.execute_command("CLUSTER ADDSLOTS", *range(NUM_SLOTS))
            # A server that starts refuses writes for two seconds.
            eventually(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        yield node
    finally:
        node.stop()


@pytest.fixture
def node(cluster: Node) -> Node:
    with cluster.client() as client:
        client.flushall()
    return cluster


def test_L2_commands_under_way_are_unavailable_where_another_closes_their_connections(node: Node, run: Loop) -> None:
    async def interrupt(num_turns: int) -> list[object]:
        async with Store.open(f"redis+cluster://127.0.0.1:{node.port}") as store:
            calls = [asyncio.create_task(each()) for each in 4 * [store.ping, store.job_ids]]
            for _ in range(num_turns):
                await asyncio.sleep(0)
            # redis-py does the same when it meets a moved slot.
            for each in store._redis.get_nodes():
                await each.disconnect()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert await store.job_ids() == []
            return ended

    async def interrupt_everywhere() -> set[type]:
        return {type(each) for num_turns in range(0, 60, 3) for each in await interrupt(num_turns)}

    assert {type(None), list} <= run(interrupt_everywhere()) <= {type(None), list, Unavailable}


def test_L3_a_server_of_a_cluster_that_comes_back_and_evicts_is_not_written_to(node: Node, run: Loop) -> None:
    async def scenario() -> None:
        async with Store.open(f"redis+cluster://127.0.0.1:{node.port}") as store:
            await store.check()
            assert await store.register_job("job", MODEL, CLUSTER, PARAMS)
            with node.client() as client:
                client.config_set("maxmemory-policy", "allkeys-lfu")
            for each in store._redis.get_nodes():
                await each.disconnect()
            with pytest.raises(Unavailable):
                await store.register_job("other", MODEL, CLUSTER, PARAMS)
            assert "allkeys-lfu" in store.fault
            with node.client() as client:
                assert not client.exists(JobKeys("other").of("job"))
                client.config_set("maxmemory-policy", "noeviction")
            await store.check_settings()
            assert not await store.check_again()
            assert await store.register_job("other", MODEL, CLUSTER, PARAMS)

    run(scenario())


def test_L2_a_server_of_a_cluster_that_does_not_answer_is_passed_over(
    node: Node, run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with Store.open(f"redis+cluster://127.0.0.1:{node.port}") as store:
            await store.check()
            primaries = store._redis.get_primaries()
            away = ClusterNode("127.0.0.1", 1, server_type="primary", socket_connect_timeout=1)
            monkeypatch.setattr(store._redis, "get_primaries", lambda: [away, *primaries])
            await store.check_settings()
            with node.client() as client:
                client.config_set("maxmemory-policy", "allkeys-lfu")
            # The client asks anew which servers there are, over connections that are checked.
            with pytest.raises((Unsupported, Unavailable), match="allkeys-lfu"):
                await store.check_settings()
            assert "allkeys-lfu" in store.fault
            with node.client() as client:
                client.config_set("maxmemory-policy", "noeviction")
            await store.check_settings()
            assert not store.fault
            monkeypatch.setattr(store._redis, "get_primaries", lambda: [away])
            with pytest.raises(Unavailable, match="no server of the Cluster answers"):
                await store.check_settings()

    run(scenario())
