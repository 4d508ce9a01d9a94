"""How the newest packing of an attempt ended, in a real Redis."""

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from relibra.planning.launch import Launch
from relibra.store import Store


def test_S9_the_newest_packing_is_known(store: Store, run: Loop) -> None:
    async def pack() -> None:
        job = await store.register_job("job", MODEL, CLUSTER, PARAMS)
        assert await store.get_packing(job) is None
        await store.note_packing(job, 3, "packing gains a tenth", is_packed=True)
        await store.note_packing(job, 4, "too late" + "!" * 1000, is_packed=False)
        note = await store.get_packing(job)
        assert note is not None
        assert (note.step, note.is_packed) == (4, False)
        assert note.text.startswith("too late")
        assert len(note.text) == 500
        await store.remove_job("job")
        assert await store.get_packing(job) is None

    run(pack())


def test_S9_a_packing_belongs_to_an_attempt_and_ends_with_it(store: Store, run: Loop) -> None:
    async def pack() -> None:
        launch, again = Launch(token="a"), Launch(token="b")
        first = await store.register_job("job", MODEL, CLUSTER, PARAMS, launch=launch)
        second = await store.register_job("job", MODEL, CLUSTER, PARAMS, launch=again)
        await store.note_packing(first, 3, "packing gains a tenth", is_packed=True)
        assert await store.get_packing(first) is None
        assert await store.get_packing(second) is None

    run(pack())
