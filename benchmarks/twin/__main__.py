"""Predict every published figure, and write `results/twin.json` and the tables of docs/twin.md.

python -m benchmarks.twin
"""

from benchmarks import results
from benchmarks.evaluation.page import write_tables
from benchmarks.twin.predict import PUBLISHED, Row, predict, ratio
from benchmarks.twin.tables import PAGE, TABLES


def _row(row: Row) -> Row:
    predicted = predict(row)
    ends = {"predicted": predicted.mid, "predicted_range": [predicted.low, predicted.high]}
    return {**row, "published": ratio(row["published"]), **ends}


if __name__ == "__main__":
    results.write("twin", [_row(row) for row in PUBLISHED["rows"]])
    write_tables(PAGE, TABLES)
