from benchmarks import results
from benchmarks.wall_clock.table import recorded, wall_clock


def test_the_table_has_a_line_for_every_measured_case_with_the_slow_networks_last(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    row = {"ranks": 2, "tokens": 4096, "sigma": 1.5, "network_mbit": None, "of_balance": 0.963, "gain": 1.068}
    row["predicted"] = {"plain_imbalance": 1.3, "of_balance": 0.97, "gain": 1.10}
    results.write("wall_clock-2-4096-1.5", [row])
    results.write("wall_clock-2-2048-1.5-4000mbit", [{**row, "tokens": 2048, "network_mbit": 4000}])
    results.write("wall_clock-2-2048-1.5", [{**row, "tokens": 2048}])
    lines = wall_clock().splitlines()[2:]
    measured = " | 1.5 | 1.30 | 96.3% | 97.0% | 1.068x | 1.100x | +3.0% |"
    networks_and_tokens = ("memory | 2048", "memory | 4096", "4000 Mbit/s | 2048")
    assert lines == [f"| 2 | {each}{measured}" for each in networks_and_tokens]


def test_what_was_said_before_the_runs_on_recorded_routing_comes_first_and_without_measured_figures(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    predicted = {"plain_imbalance": 1.2, "experts_share": 0.7, "of_balance": 0.97, "gain": 1.1}
    row = {"of_balance": 0.963, "gain": 1.068, "gain_quartiles": [1.05, 1.08], "predicted": predicted}
    for run in ("1", "before"):
        results.write(f"wall_clock_recorded-{run}", [row])
    assert recorded().splitlines()[2:] == [
        "| before | 1.20 | 70% |  |  |  | 97.0% | 1.100x |",
        "| 1 | 1.20 | 70% | 96.3% | 1.068x | 1.050x to 1.080x | 97.0% | 1.100x |",
    ]
