from benchmarks.peers.tables import matrix


def row(planner: str, model: str, imbalance: float) -> dict[str, object]:
    return {"planner": planner, "model": model, "ep": 8, "imbalance": imbalance}


def test_planners_are_rows_and_one_that_was_left_out_says_so():
    rows = [row("plain", "a", 1.5), row("relibra", "a", 1.01), row("plain", "b", 1.4), row("relibra", "b", 1.02)]
    table = matrix(rows, lambda each: f"{each['imbalance']:.2f}", ["plain", "relibra", "gone"])
    assert table.splitlines() == [
        "| planner | a, EP 8 | b, EP 8 |",
        "| --- | ---: | ---: |",
        "| plain expert parallelism | 1.50 | 1.40 |",
        "| **relibra** | 1.01 | 1.02 |",
        "| gone | left out | left out |",
    ]
