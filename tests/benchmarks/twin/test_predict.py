import pytest

from benchmarks import results
from benchmarks.twin.predict import PREDICTIONS, PUBLISHED, predict, ratio
from benchmarks.twin.tables import counts

QUICK = [row for row in PUBLISHED["rows"] if row["kind"] in ("step", "speed", "replicas", "layer")]


@pytest.mark.parametrize("row", QUICK, ids=lambda row: f"{row['kind']} {row.get('model')} {row['published']}")
def test_the_stored_predictions_are_those_of_the_model_of_time_as_it_is(row):
    stored = results.read("twin")[PUBLISHED["rows"].index(row)]
    training, figure = PREDICTIONS[row["kind"]](row)
    assert figure(training) == pytest.approx(stored["predicted"], rel=1e-6)


def _settings(row):
    return {name: value for name, value in row.items() if not name.startswith("predicted")}


def test_every_published_figure_has_a_prediction_and_a_source():
    assert [_settings(row) for row in results.read("twin")] == [
        row | {"published": pytest.approx(ratio(row["published"]))} for row in PUBLISHED["rows"]
    ]
    for row in PUBLISHED["rows"]:
        assert row["kind"] in PREDICTIONS
        assert len(PUBLISHED["sources"][row["source"]].split()) == 3


def test_a_faster_machine_makes_a_shorter_step_and_the_ends_hold_the_middle():
    row = next(row for row in QUICK if row["kind"] == "step")
    slow, fast = predict(row), predict(row | {"hardware": "gb200"})
    assert fast.mid < slow.mid
    assert slow.low < slow.mid < slow.high


def test_what_the_constants_come_from_does_not_count():
    assert not counts({"kind": "share", "of": "UltraEP"})
    assert not counts({"kind": "replicas"})
    assert counts({"kind": "share", "of": "Megatron-LM"})
