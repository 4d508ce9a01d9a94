from benchmarks import results
from benchmarks.wall_clock.table import wall_clock


def test_a_case_that_nobody_ran_says_so_beside_the_measured_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    predicted = {"plain_imbalance": 1.3, "of_balance": 0.97, "gain": 1.10}
    results.write("wall_clock-2-4096-1.5", [{"of_balance": 0.963, "gain": 1.068, "predicted": predicted}])
    lines = wall_clock().splitlines()[2:]
    assert len(lines) == 2 * 2 * 3
    assert sum("unmeasured" in line for line in lines) == 11
    (measured,) = [line for line in lines if "unmeasured" not in line]
    assert measured == "| 2 | 4096 | 1.5 | 1.30 | 96.3% | 97.0% | 1.068x | 1.100x | +3.0% |"
