from harness.services import Loop
from harness.step_samples import expire, report_all
from relibra.store import JobRecord, Store


def test_summaries_are_listed_newest_first_and_paged(store: Store, run: Loop, job: JobRecord) -> None:
    for step in (3, 10, 4, 1 << 53):
        report_all(store, run, step)
    expire(store, run, job, [3, 4, 10, 1 << 53])
    assert [each.step for each in run(store.list_summaries(job))] == [1 << 53, 10, 4, 3]
    assert [each.step for each in run(store.list_summaries(job, limit=1, before=10))] == [4]
    assert [each.step for each in run(store.summaries_after(job, 3, limit=2))] == [4, 10]
    assert [run(store.count_summaries(job, last)) for last in (-1, 3, 9, 1 << 53)] == [0, 1, 2, 4]
    assert run(store.num_kept_steps(job)) == 0


def test_a_sample_has_the_first_and_the_last_and_evenly_spaced_steps(store: Store, run: Loop, job: JobRecord) -> None:
    for step in range(10, 21):
        report_all(store, run, step)
    expire(store, run, job, range(10, 21))
    assert [each.step for each in run(store.sample_summaries(job, 3))] == [20, 15, 10]
    assert [each.step for each in run(store.sample_summaries(job, 11))] == list(range(20, 9, -1))
    assert [each.step for each in run(store.sample_summaries(job, 1))] == [20]
