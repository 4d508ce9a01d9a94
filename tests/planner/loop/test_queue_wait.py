from relibra.planner.loop.queue_wait import QueueWaits


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_job_waits_from_the_first_look_that_finds_it_without_a_solver() -> None:
    clock = Clock()
    waits = QueueWaits(clock)
    waits.look(["a"])
    clock.now += 2
    waits.look(["a", "b"])
    clock.now += 3
    assert (waits.end("a"), waits.end("b"), waits.end("never seen")) == (5, 3, 0)
    assert waits.end("a") == 0, "its next step waits anew"


def test_a_job_that_another_planner_solves_for_waits_no_more() -> None:
    clock = Clock()
    waits = QueueWaits(clock)
    waits.look(["a"])
    clock.now += 2
    waits.look([])
    clock.now += 2
    waits.look(["a"])
    clock.now += 1
    assert waits.end("a") == 1
