from relibra.planner.probes import HUNG_AFTER_S, Probes


def test_a_planner_whose_event_loop_stands_still_is_neither_alive_nor_ready():
    now = 100.0
    probes = Probes(lambda: now)
    assert probes.answer("/livez") == (True, "alive"), "a planner that starts must not be restarted"
    assert probes.answer("/readyz") == (False, "not ready: Redis was not asked yet")
    probes.tell_ready("")
    now += HUNG_AFTER_S
    assert probes.answer("/readyz") == (True, "ready")
    now += 5
    stands_still = (False, "the event loop has not run for 15 s")
    assert probes.answer("/livez") == probes.answer("/readyz") == stands_still
    probes.beat()
    assert probes.answer("/livez") == (True, "alive")


def test_a_planner_without_redis_is_alive_because_a_restart_brings_no_redis_back():
    probes = Probes()
    probes.tell_ready("Redis does not serve")
    assert probes.answer("/livez") == (True, "alive")


def test_other_paths_are_no_probes():
    assert Probes().answer("/metrics") is None
