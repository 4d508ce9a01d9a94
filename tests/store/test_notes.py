"""What the planner refused of an attempt, and how far its newest packing has come, in a real Redis."""

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from relibra.errors import Conflict
from relibra.planning.launch import Launch
from relibra.store import PackingState, Refused, Store


def test_S9_the_newest_refusal_and_the_first_step_are_known(store: Store, run: Loop) -> None:
    async def refuse() -> None:
        job = await store.register_job("job", MODEL, CLUSTER, PARAMS)
        for step in (3, 4):
            await store.note_refusal(job, Refused.SCHEDULE, step, Conflict(f"step {step} has expired" + "!" * 1000))
        (refusal,) = await store.get_refusals(job)
        assert (refusal.what, refusal.since_step, refusal.step) == (Refused.SCHEDULE, 3, 4)
        assert refusal.error == "Conflict"
        assert refusal.text.startswith("step 4 has expired")
        assert len(refusal.text) == 500

    run(refuse())


def test_refusals_end_with_an_accepted_schedule_and_with_the_job(store: Store, run: Loop) -> None:
    async def refuse() -> None:
        job = await store.register_job("job", MODEL, CLUSTER, PARAMS)
        await store.note_refusal(job, Refused.SEQUENCES, 3, Conflict("no"))
        await store.forget_refusals(job)
        assert await store.get_refusals(job) == []
        await store.note_refusal(job, Refused.SEQUENCES, 3, Conflict("no"))
        await store.remove_job("job")
        assert await store.get_refusals(job) == []

    run(refuse())


def test_S9_refusals_belong_to_an_attempt_and_end_with_it(store: Store, run: Loop) -> None:
    async def refuse() -> None:
        launch, again = Launch(token="a"), Launch(token="b")
        first = await store.register_job("job", MODEL, CLUSTER, PARAMS, launch=launch)
        await store.note_refusal(first, Refused.SCHEDULE, 3, Conflict("no"))
        second = await store.register_job("job", MODEL, CLUSTER, PARAMS, launch=again)
        assert await store.get_refusals(second) == []
        await store.note_refusal(first, Refused.SEQUENCES, 4, Conflict("late"))
        assert [each.what for each in await store.get_refusals(first)] == [Refused.SCHEDULE]
        assert await store.get_refusals(second) == []

    run(refuse())


def test_S9_the_newest_packing_is_known(store: Store, run: Loop) -> None:
    async def pack() -> None:
        job = await store.register_job("job", MODEL, CLUSTER, PARAMS)
        assert await store.get_packing(job) is None
        await store.note_packing(job, 3, PackingState.PACKED, "packing gains a tenth")
        await store.note_packing(job, 4, PackingState.REFUSED, "too late" + "!" * 1000)
        note = await store.get_packing(job)
        assert note is not None
        assert (note.step, note.state) == (4, PackingState.REFUSED)
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
        await store.note_packing(first, 3, PackingState.PACKED, "packing gains a tenth")
        assert await store.get_packing(first) is None
        assert await store.get_packing(second) is None

    run(pack())
